"""The service's own certificate authority, server certificates of the user, and the certificates for Google's
storage hosts (spec/program#storage)."""

import re
import runpy
import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from trainshed.access.authority import Authority
from trainshed.serve import certificates
from trainshed.serve.certificates import (
    CertificatesUnusable,
    issue_certificate,
    prepare_own_certificates,
    provided_certificates,
)

NOW = 1_760_000_000.0
DAY = 86_400
NAMES = ("localhost", "127.0.0.1", "::1", "box")


@pytest.fixture(autouse=True)
def local_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a machine with the name `box`, and creates certificates within the test's process.
    tests/e2e/test_tls.py covers the separate process."""

    def run(command: list[str], **_: object) -> CompletedProcess[str]:
        monkeypatch.setattr("sys.argv", command[3:])
        try:
            runpy.run_path(certificates.__file__, run_name="__main__")
        except SystemExit as end:
            return CompletedProcess(command, 1, stderr=str(end))
        return CompletedProcess(command, 0)

    monkeypatch.setattr("socket.gethostname", lambda: "box")
    monkeypatch.setattr("subprocess.run", run)


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names_in(path: Path) -> set[str]:
    alternatives = load(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in alternatives.get_values_for_type(x509.IPAddress)}
    return addresses | set(alternatives.get_values_for_type(x509.DNSName))


@pytest.mark.parametrize(
    ("host", "days", "torn", "lost"),
    [
        ("127.0.0.1", 600, "", ""),
        ("10.1.2.3", 1, "", ""),
        ("127.0.0.1", 1, "server.pem", ""),
        ("127.0.0.1", 1, "", "server.key"),
        ("127.0.0.1", 1, "", "server.json"),
    ],
)
def test_expiring_or_damaged_server_certificate_is_renewed_by_the_same_authority(
    tmp_path: Path, host: str, days: int, torn: str, lost: str
) -> None:
    """The certificate is renewed before it expires, if its names change, and if it is damaged. Clients that
    trust the authority continue to work."""
    first = prepare_own_certificates(tmp_path, "127.0.0.1", NOW)
    authority, old = first.ca.read_bytes(), first.chain.read_bytes()
    if torn:
        (tmp_path / torn).write_text("torn")
    if lost:
        (tmp_path / lost).unlink()
    again = prepare_own_certificates(tmp_path, host, NOW + days * DAY)
    assert again.ca.read_bytes() == authority
    assert again.chain.read_bytes() != old
    assert names_in(again.chain) == {*NAMES, host}
    ends = load(again.chain).not_valid_after_utc.timestamp()
    assert ends - (NOW + days * DAY) == pytest.approx(825 * DAY, abs=DAY)


def test_certificate_authority_is_replaced_before_it_expires(tmp_path: Path) -> None:
    first = prepare_own_certificates(tmp_path, "127.0.0.1", NOW).ca.read_bytes()
    again = prepare_own_certificates(tmp_path, "127.0.0.1", NOW + 3_500 * DAY)
    assert again.ca.read_bytes() != first
    assert again.ca.read_text() in again.roots.read_text()


def test_missing_key_of_the_certificate_authority_is_reported_at_the_next_signature(tmp_path: Path) -> None:
    prepare_own_certificates(tmp_path, "127.0.0.1", NOW)
    (tmp_path / "ca.key").unlink()
    # The key is not needed until the next signature.
    prepare_own_certificates(tmp_path, "127.0.0.1", NOW + DAY)
    with pytest.raises(
        CertificatesUnusable, match=r"ca\.key, the key of .*, is missing.*move .*ca\.pem away"
    ):
        prepare_own_certificates(tmp_path, "10.1.2.3", NOW + DAY)


def test_key_that_does_not_match_the_certificate_authority_is_rejected(tmp_path: Path) -> None:
    prepare_own_certificates(tmp_path, "127.0.0.1", NOW)
    (tmp_path / "ca.key").write_bytes(Authority.new(NOW, DAY).key_pem())
    with pytest.raises(CertificatesUnusable, match="private key does not belong to its certificate"):
        prepare_own_certificates(tmp_path, "10.1.2.3", NOW)


# --- the user's own


def pair(directory: Path) -> tuple[Path, Path]:
    authority = Authority.new(NOW, 10 * DAY)
    chain, key = authority.issue(("train.example.com",), NOW, NOW + DAY)
    (directory / "cert.pem").write_bytes(chain + authority.certificate_pem())
    (directory / "key.pem").write_bytes(key)
    return directory / "cert.pem", directory / "key.pem"


def test_certificate_provided_by_the_operator_is_trusted_by_clients(tmp_path: Path) -> None:
    chain, key = pair(tmp_path)
    served = provided_certificates(chain, key, tmp_path / "tls")
    assert (served.chain, served.key, served.ca) == (chain, key, chain)
    assert chain.read_text().strip() in served.roots.read_text()


def missing_file(chain: Path, key: Path) -> None:
    key.unlink()


def invalid_pem(chain: Path, key: Path) -> None:
    chain.write_text("hello")


def key_of_another_certificate(chain: Path, key: Path) -> None:
    key.write_bytes(Authority.new(NOW, DAY).key_pem())


def encrypted_key(chain: Path, key: Path) -> None:
    secret = serialization.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        secret.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (missing_file, r"key .*key\.pem cannot be read: No such file"),
        (invalid_pem, r"cert\.pem cannot be used: .*not in PEM"),
        (key_of_another_certificate, r"key\.pem belongs to another certificate"),
        (encrypted_key, r"key\.pem is encrypted"),
    ],
)
def test_invalid_certificate_files_are_reported_with_the_remedy(
    tmp_path: Path, harm: Callable[[Path, Path], None], words: str
) -> None:
    chain, key = pair(tmp_path)
    harm(chain, key)
    with pytest.raises(CertificatesUnusable, match=words) as refused:
        provided_certificates(chain, key, tmp_path / "tls")
    assert "--tls-key" in str(refused.value)


def trusted_certificates(files: certificates.Interception) -> list[str]:
    """Return the certificates in the file, in order."""
    return re.findall(r"-----BEGIN [^-]+-----\n[^-]+-----END [^-]+-----\n", files.trust.read_text())


def test_endpoint_certificate_is_valid_for_the_hostnames_of_google(tmp_path: Path) -> None:
    files = certificates.prepare_interception(tmp_path, NOW, {})
    leaf = load(files.certificate)
    ours = x509.load_pem_x509_certificate(trusted_certificates(files)[0].encode())
    builder = PolicyBuilder().store(Store([ours])).time(leaf.not_valid_before_utc)
    storage = ("storage.googleapis.com", "www.googleapis.com", "b.storage.googleapis.com")
    apis = ("us-central1-aiplatform.googleapis.com", "logging.googleapis.com")
    for name in (*storage, *apis):
        assert builder.build_server_verifier(x509.DNSName(name)).verify(leaf, [])
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName("oauth2.googleapis.com")).verify(leaf, [])
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate)
    assert files == certificates.interception_files(tmp_path)


def test_programs_can_read_trusted_certificates_but_no_key(tmp_path: Path) -> None:
    files = certificates.prepare_interception(tmp_path, NOW, {})
    assert stat.S_IMODE(files.trust.stat().st_mode) == 0o644
    assert stat.S_IMODE(files.trust.parent.stat().st_mode) == 0o755
    assert [path.name for path in files.trust.parent.iterdir()] == [files.trust.name]
    assert "PRIVATE KEY" not in files.trust.read_text()
    for private in files.certificate.parent.iterdir():
        assert stat.S_IMODE(private.stat().st_mode) == 0o600, private.name
    assert files.certificate.parent not in files.trust.parents


def test_certificate_authorities_of_the_operator_are_trusted_without_duplicates(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = issue_certificate(tmp_path / "other", "proxy", ("proxy",), NOW).ca
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# Our proxy\n{other.read_text()}")
    environ = {"SSL_CERT_FILE": str(bundle), "CURL_CA_BUNDLE": str(bundle)}
    plain = trusted_certificates(certificates.prepare_interception(tmp_path / "a", NOW, {}))
    files = certificates.prepare_interception(tmp_path / "a", NOW, {**environ, "REQUESTS_CA_BUNDLE": "/none"})
    roots = trusted_certificates(files)
    assert set(roots) - set(plain) == {other.read_text()}
    assert len(roots) == len(set(roots)) == len(plain) + 1
