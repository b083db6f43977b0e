"""Certificate authorities of a service, or of an engine for its agents. They sign certificates of servers and
clients.

The module imports `cryptography`. Therefore only modules that create certificates import it
(`serve.certificates`, `trainshed_cluster.remote.credentials`).
"""

import datetime
import ipaddress
import secrets
from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_BACKDATE_SECONDS = 3_600
"""A certificate becomes valid this many seconds before its creation, since the clocks of machines differ."""


class Authority:
    """A self-signed root certificate and its key. It signs certificates of servers and clients, but no
    certificates of other authorities."""

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate = certificate
        self._key = key

    @classmethod
    def new(cls, now: float, seconds: float) -> "Authority":
        """Create an authority with a random key. It is valid for `seconds` from `now` (seconds since the
        epoch)."""
        # Names are unique. Otherwise a client that trusts two authorities with the same name may try the
        # wrong certificate.
        subject = _common_name(f"Trainshed authority {secrets.token_hex(4)}")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, subject, key.public_key(), now, now + seconds)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> "Authority":
        """Read an authority from PEM. Raises ValueError if the key does not belong to the certificate or is
        not an elliptic-curve key."""
        authority = x509.load_pem_x509_certificate(certificate)
        secret = serialization.load_pem_private_key(key, None)
        if not isinstance(secret, ec.EllipticCurvePrivateKey) or (
            secret.public_key() != authority.public_key()
        ):
            raise ValueError(
                "the authority's private key does not belong to its certificate: restore both files from a "
                "backup, or move both away (the service then creates a new authority)"
            )
        return cls(authority, secret)

    @property
    def ends(self) -> float:
        """The time at which the authority's certificate expires, in seconds since the epoch."""
        return self._certificate.not_valid_after_utc.timestamp()

    def certificate_pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def key_pem(self) -> bytes:
        return _key_pem(self._key)

    def issue(self, names: tuple[str, ...], now: float, ends: float) -> tuple[bytes, bytes]:
        """Issue a server certificate for these host names and addresses. Return (certificate, key) in PEM.
        The certificate cannot be used by clients."""
        return self._issue(_alternatives(names), ExtendedKeyUsageOID.SERVER_AUTH, now, ends)

    def issue_client(self, uri: str, now: float, ends: float) -> tuple[bytes, bytes]:
        """Issue a client certificate for a URI. Return (certificate, key) in PEM. The certificate cannot be
        used by servers."""
        name = x509.UniformResourceIdentifier(uri)
        return self._issue((name,), ExtendedKeyUsageOID.CLIENT_AUTH, now, ends)

    def _issue(
        self, names: Iterable[x509.GeneralName], use: x509.ObjectIdentifier, now: float, ends: float
    ) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._certificate
        signer = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        builder = (
            _builder(_common_name("Trainshed"), issuer.subject, key.public_key(), now, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False
            )
        )
        certificate = builder.sign(self._key, hashes.SHA256())
        return certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begins: float, ends: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.fromtimestamp(begins - _BACKDATE_SECONDS, datetime.UTC))
        .not_valid_after(datetime.datetime.fromtimestamp(ends, datetime.UTC))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _alternatives(names: Iterable[str]) -> Iterable[x509.GeneralName]:
    for name in names:
        try:
            yield x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            yield x509.DNSName(name)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
