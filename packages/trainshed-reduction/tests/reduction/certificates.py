"""A certificate authority of a moment, and a reducer's certificate by it."""

import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority(NamedTuple):
    """PEM files: what to trust, and a certificate with its key."""

    root: Path
    certificate: Path
    key: Path


def authority(directory: Path) -> Authority:
    """Of its own; the directory is made."""
    directory.mkdir(parents=True)
    issuer, issuer_key = _name("a job's authority"), ec.generate_private_key(ec.SECP256R1())
    root = _certificate(issuer, issuer_key, issuer, issuer_key, is_authority=True)
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = _certificate(_name("a reducer"), key, issuer, issuer_key, is_authority=False)
    paths = Authority(directory / "root.pem", directory / "certificate.pem", directory / "key.pem")
    paths.root.write_bytes(root.public_bytes(serialization.Encoding.PEM))
    paths.certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    paths.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
        .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .sign(issuer_key, hashes.SHA256())
    )
