"""The service's own authority and server certificate, and the ones that a user gives."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from trainshed.access.authority import Authority
from trainshed.serve import certificates
from trainshed.serve.bootstrap import advice_on
from trainshed.serve.certificates import CertificatesUnusable, given, make, own

NOW = 1_760_000_000.0
DAY = 86_400
NAMES = ("localhost", "127.0.0.1", "::1", "box")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made in this process, on a machine called `box`: that there is one of their own is for the end-to-end
    tests."""
    monkeypatch.setattr(certificates, "_make_elsewhere", make)
    monkeypatch.setattr("socket.gethostname", lambda: "box")


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names_in(path: Path) -> set[str]:
    alternatives = load(path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = {str(address) for address in alternatives.get_values_for_type(x509.IPAddress)}
    return addresses | set(alternatives.get_values_for_type(x509.DNSName))


def damage_chain(directory: Path) -> None:
    (directory / "server.pem").write_text("torn")


def lose_key(directory: Path) -> None:
    (directory / "server.key").unlink()


def lose_note(directory: Path) -> None:
    (directory / "server.json").unlink()


@pytest.mark.parametrize(
    ("host", "days", "happens"),
    [
        ("127.0.0.1", 600, None),
        ("10.1.2.3", 1, None),
        ("127.0.0.1", 1, damage_chain),
        ("127.0.0.1", 1, lose_key),
        ("127.0.0.1", 1, lose_note),
    ],
)
def test_renewed_by_the_same_authority(
    tmp_path: Path, host: str, days: int, happens: Callable[[Path], None] | None
) -> None:
    """Near its end, under other names, or damaged: clients that trust the authority go on."""
    first = own(tmp_path, "127.0.0.1", NOW)
    authority, old = first.ca.read_bytes(), first.chain.read_bytes()
    if happens is not None:
        happens(tmp_path)
    again = own(tmp_path, host, NOW + days * DAY)
    assert again.ca.read_bytes() == authority
    assert again.chain.read_bytes() != old
    assert names_in(again.chain) == {*NAMES, host}
    ends = load(again.chain).not_valid_after_utc.timestamp()
    assert ends - (NOW + days * DAY) == pytest.approx(825 * DAY, abs=DAY)


def test_an_authority_near_its_end_is_replaced(tmp_path: Path) -> None:
    first = own(tmp_path, "127.0.0.1", NOW).ca.read_bytes()
    again = own(tmp_path, "127.0.0.1", NOW + 3_500 * DAY)
    assert again.ca.read_bytes() != first
    assert again.ca.read_text() in again.roots.read_text()


def test_an_authority_that_lost_its_key_is_not_replaced_behind_the_users_back(
    tmp_path: Path,
) -> None:
    own(tmp_path, "127.0.0.1", NOW)
    (tmp_path / "ca.key").unlink()
    own(tmp_path, "127.0.0.1", NOW + DAY)  # As long as it need not sign, it is not missed.
    with pytest.raises(CertificatesUnusable, match=r"ca\.key is missing.*move .*ca\.pem away"):
        own(tmp_path, "10.1.2.3", NOW + DAY)


def test_the_key_of_another_authority_is_refused(tmp_path: Path) -> None:
    own(tmp_path, "127.0.0.1", NOW)
    (tmp_path / "ca.key").write_bytes(Authority.new(NOW, DAY).key_pem())
    with pytest.raises(ValueError, match=r"ca\.key does not belong to ca\.pem"):
        own(tmp_path, "10.1.2.3", NOW)


# --- the user's own


def pair(directory: Path) -> tuple[Path, Path]:
    authority = Authority.new(NOW, 10 * DAY)
    chain, key = authority.issue(("train.example.com",), NOW, NOW + DAY)
    (directory / "cert.pem").write_bytes(chain + authority.certificate_pem())
    (directory / "key.pem").write_bytes(key)
    return directory / "cert.pem", directory / "key.pem"


def test_the_users_own_certificate_is_what_clients_are_to_trust(tmp_path: Path) -> None:
    chain, key = pair(tmp_path)
    served = given(chain, key, tmp_path / "tls")
    assert (served.chain, served.key, served.ca) == (chain, key, chain)
    assert chain.read_text().strip() in served.roots.read_text()


def missing(chain: Path, key: Path) -> None:
    key.unlink()


def no_pem(chain: Path, key: Path) -> None:
    chain.write_text("hello")


def of_another(chain: Path, key: Path) -> None:
    key.write_bytes(Authority.new(NOW, DAY).key_pem())


def encrypted(chain: Path, key: Path) -> None:
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
        (missing, r"key .*key\.pem cannot be read: No such file"),
        (no_pem, r"cert\.pem cannot be served: .*not in PEM"),
        (of_another, r"key\.pem belongs to another certificate"),
        (encrypted, r"key\.pem is encrypted"),
    ],
)
def test_bad_files_are_named_with_what_to_do(
    tmp_path: Path, harm: Callable[[Path, Path], None], words: str
) -> None:
    chain, key = pair(tmp_path)
    harm(chain, key)
    with pytest.raises(CertificatesUnusable, match=words) as refused:
        given(chain, key, tmp_path / "tls")
    assert "--tls-key" in str(refused.value)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.EACCES, "Make the directory writable."),
        (errno.EINVAL, "Its file system cannot do what a service needs"),
        (errno.EIO, "Mend that, or choose another directory with --data."),
    ],
)
def test_a_failure_is_told_with_what_mends_it(code: int, advice: str) -> None:
    """Issue 42: EINVAL was told as "make the directory writable"."""
    assert advice_on(OSError(code, os.strerror(code))).startswith(advice)
