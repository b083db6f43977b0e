"""The certificate for Google's storage hosts, and whom programs trust for it (spec/program#storage)."""

import re
import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError

from trainshed.serve import certificates
from trainshed.serve.certificates import make, signed

NOW = 1_760_000_000.0


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made in this process; that there is one of their own is for the end-to-end tests."""
    monkeypatch.setattr(certificates, "_make_elsewhere", make)


def chain(files: certificates.Interception) -> x509.Certificate:
    return x509.load_pem_x509_certificate(files.certificate.read_bytes())


def trusted(files: certificates.Interception) -> list[str]:
    """The certificates in the file, as they stand there."""
    return re.findall(r"-----BEGIN [^-]+-----\n[^-]+-----END [^-]+-----\n", files.trust.read_text())


def test_the_certificate_is_for_googles_hosts_and_trusted_by_the_file(tmp_path: Path) -> None:
    files = certificates.prepare_interception(tmp_path, NOW, {})
    leaf = chain(files)
    ours = x509.load_pem_x509_certificate(trusted(files)[0].encode())
    builder = PolicyBuilder().store(Store([ours])).time(leaf.not_valid_before_utc)
    storage = ("storage.googleapis.com", "www.googleapis.com", "b.storage.googleapis.com")
    apis = ("us-central1-aiplatform.googleapis.com", "logging.googleapis.com")
    for name in (*storage, *apis):
        assert builder.build_server_verifier(x509.DNSName(name)).verify(leaf, [])
    with pytest.raises(VerificationError):
        builder.build_server_verifier(x509.DNSName("oauth2.googleapis.com")).verify(leaf, [])
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate)
    assert files == certificates.interception_files(tmp_path)


def test_programs_of_any_user_may_read_whom_to_trust_and_no_key(tmp_path: Path) -> None:
    files = certificates.prepare_interception(tmp_path, NOW, {})
    assert stat.S_IMODE(files.trust.stat().st_mode) == 0o644
    assert stat.S_IMODE(files.trust.parent.stat().st_mode) == 0o755
    assert [path.name for path in files.trust.parent.iterdir()] == [files.trust.name]
    assert "PRIVATE KEY" not in files.trust.read_text()
    for private in files.certificate.parent.iterdir():
        assert stat.S_IMODE(private.stat().st_mode) == 0o600, private.name
    assert files.certificate.parent not in files.trust.parents


def test_whom_the_operator_trusts_is_trusted_too_and_nobody_twice(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = signed(tmp_path / "other", "proxy", ("proxy",), NOW).ca
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# Our proxy\n{other.read_text()}")
    environ = {"SSL_CERT_FILE": str(bundle), "CURL_CA_BUNDLE": str(bundle)}
    plain = trusted(certificates.prepare_interception(tmp_path / "a", NOW, {}))
    files = certificates.prepare_interception(
        tmp_path / "a", NOW, {**environ, "REQUESTS_CA_BUNDLE": "/none"}
    )
    roots = trusted(files)
    assert set(roots) - set(plain) == {other.read_text()}
    assert len(roots) == len(set(roots)) == len(plain) + 1
