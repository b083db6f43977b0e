"""Creates and renews the certificates for TLS. Either the user provides a certificate, or the service's own
authority signs one. The authority also signs other certificates of the service.

The authority is created at the first start and remains the same, so that clients need no new configuration.
At a start, the server's certificate is renewed if it expires soon or if the names of the service have
changed. A separate process (`python -m trainshed.serve.certificates`) creates certificates, because a service
that runs for weeks does not need the library. Blocks on disks and processes, because the event loop of the
service has not started yet.

This module also creates the files with which replicas' endpoints replace Google's hosts (`Interception`).
TensorFlow's gs://, the Vertex SDK and Google's other clients only support these host names. Only programs
that are configured to trust the replacement certificate use it.
"""

import contextlib
import importlib.util
import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from trainshed.core.catalog import regions
from trainshed.replica.system import durable, roots

_DAY: Final = 86_400
AUTHORITY_DAYS: Final = 3_650
SERVER_DAYS: Final = 825
"""Days of validity. Some vendors' clients reject certificates that are valid for longer."""
RENEW_DAYS: Final = 275
"""Minimum days of validity at a start. The service may then run for most of a year."""
_AUTHORITY: Final = "ca.pem"
_SERVER: Final = "server"
_ROOTS: Final = "roots.pem"
_TRUSTED_BY: Final = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE")
"""Variables with which the operator selects the authorities that programs trust."""
_END: Final = "-----END CERTIFICATE-----"


class CertificatesUnusable(Exception):
    """No usable certificate exists. The message contains the file, the reason and advice."""


class Certificates(Struct, frozen=True):
    """A certificate with its key, and the certificates that clients must trust, as PEM files."""

    chain: Path
    key: Path
    #: The certificate of the authority that a client must trust.
    ca: Path
    #: The same certificate together with the default roots of gRPC clients.
    roots: Path


class Interception(Struct, frozen=True):
    """The files with which replicas' endpoints replace Google's hosts."""

    #: PEM file with the key and the chain, only for relays.
    certificate: Path
    #: The default roots and the service's own root, readable by all users.
    trust: Path


def provided_certificates(chain: Path, key: Path, directory: Path) -> Certificates:
    """Return the user's own certificates. Clients must trust the certificates in `chain`. Raises
    CertificatesUnusable."""
    _check(chain, key)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = Certificates(chain, key, chain, directory / _ROOTS)
    _write_roots(made)
    return made


def prepare_own_certificates(
    directory: Path, host: str, now: float, further: tuple[str, ...] = ()
) -> Certificates:
    """Return certificates of the service's own authority in `directory`, created or renewed if necessary.
    Raises CertificatesUnusable.

    Args:
        host: the address that the service listens on
        now: seconds since the epoch
        further: names in the setting `allowed_hosts`
    """
    is_wildcard = host in ("", "0.0.0.0", "::")
    own_names = ("localhost", "127.0.0.1", "::1", socket.gethostname())
    names = (*own_names, *(() if is_wildcard else (host,)), *further)
    usable = dict.fromkeys(name for name in names if name.isascii() and name and name != "*")
    made = issue_certificate(directory, _SERVER, tuple(usable), now)
    _write_roots(made)
    return made


def server_files(directory: Path) -> tuple[Path, Path]:
    """Return the paths of the server's chain and key in `directory`. The files may not exist."""
    return directory / f"{_SERVER}.pem", directory / f"{_SERVER}.key"


def issue_certificate(directory: Path, name: str, names: tuple[str, ...], now: float) -> Certificates:
    """Return a certificate signed by the service's own authority, created or renewed if necessary. It is in
    files `name` in `directory`. Raises CertificatesUnusable."""
    files = _files_of(directory / f"{name}.pem")
    if not _is_valid(files, names, now):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The same interpreter and import path, except for the working directory, whose files are untrusted.
        command = [sys.executable, "-P", "-m", __name__, str(files.chain), str(now), *names]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise CertificatesUnusable(
                f"The certificates in {directory} cannot be created: {made.stderr.strip()}. Fix the cause, "
                "or use your own certificate with --tls-cert and --tls-key."
            )
        _check(files.chain, files.key)
    return files


def _files_of(chain: Path) -> Certificates:
    ca, roots = chain.with_name(_AUTHORITY), chain.with_name(_ROOTS)
    return Certificates(chain, chain.with_suffix(".key"), ca, roots)


def _note_file(files: Certificates) -> Path:
    return files.chain.with_suffix(".json")


def _is_valid(files: Certificates, names: tuple[str, ...], now: float) -> bool:
    """Return whether the existing files are valid for these names, and for long enough. Reads the JSON file
    next to them, because reading a certificate requires a library."""
    try:
        note: dict[str, Any] = json.loads(_note_file(files).read_text())
        ends = min(float(note["ends"]), float(note["authority_ends"]))
        if note["names"] != list(names) or ends - now < RENEW_DAYS * _DAY:
            return False
        if note["ca"] != files.ca.read_text():
            return False
        _check(files.chain, files.key)
    except (OSError, ValueError, KeyError, TypeError, CertificatesUnusable):
        return False
    return True


def _check(chain: Path, key: Path) -> None:
    """Raise CertificatesUnusable unless the certificate and the key are readable and match."""
    for path, what in ((chain, "certificate"), (key, "key")):
        try:
            path.read_bytes()
        except OSError as failure:
            raise CertificatesUnusable(
                f"The {what} {path} cannot be read: {failure.strerror}. "
                "Specify files in PEM that this user can read with --tls-cert and --tls-key."
            ) from None

    def no_password() -> str:
        raise CertificatesUnusable(
            f"The key {key} is encrypted. Specify an unencrypted key with --tls-key, and let only this "
            "user read it."
        )

    try:
        # This call compares the public keys of both files.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, no_password)
    except (ssl.SSLError, ValueError) as failure:
        if "KEY_VALUES_MISMATCH" in str(failure):
            cause = f"the key {key} belongs to another certificate"
        else:
            cause = f"the certificate, or the key {key}, is not in PEM ({failure})"
        raise CertificatesUnusable(
            f"The certificate {chain} cannot be used: {cause}. --tls-cert needs the server's certificate, "
            "followed by its intermediate certificates, and --tls-key its key. Without both options, the "
            "service creates its own authority."
        ) from None


def _write_roots(made: Certificates) -> None:
    """Write the file of roots for GRPC_DEFAULT_SSL_ROOTS_FILE_PATH. This variable replaces gRPC's own roots.
    The file therefore also contains the public roots, because users' programs may call other services."""
    parts = (*public_roots(), made.ca.read_text())
    _write_if_changed(made.roots, "\n".join(part.strip() for part in parts) + "\n", 0o600)


def public_roots() -> Iterable[str]:
    """Yield the public roots in the installed gRPC package, without importing the package."""
    spec = importlib.util.find_spec("grpc")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        path = Path(place, "_cython", "_credentials", "roots.pem")
        if path.exists():
            yield path.read_text()


def _create(files: Certificates, names: tuple[str, ...], now: float) -> None:
    """Create a server certificate, and the authority if it does not exist. The JSON file is written last, so
    that an interrupted creation is repeated. Raises ValueError if the authority's key is missing."""
    # Imported here, because the library needs 12 MB of memory and only this process uses it.
    from trainshed.access.authority import Authority

    ca, ca_key = files.ca, files.ca.with_suffix(".key")
    authority = None
    if ca.exists():
        if not ca_key.exists():
            raise ValueError(
                f"{ca_key}, the key of {ca}, is missing. Restore it. If you move {ca} away instead, the "
                "service creates a new authority, and clients must trust the new one"
            )
        authority = Authority.read(ca.read_bytes(), ca_key.read_bytes())
        if authority.ends - now < RENEW_DAYS * _DAY:
            authority = None
    if authority is None:
        authority = Authority.new(now, AUTHORITY_DAYS * _DAY)
        ca.unlink(missing_ok=True)
        durable.write(str(ca_key), authority.key_pem().decode())
        durable.write(str(ca), authority.certificate_pem().decode())
    ends = min(now + SERVER_DAYS * _DAY, authority.ends)
    chain, key = authority.issue(names, now, ends)
    durable.write(str(files.key), key.decode())
    durable.write(str(files.chain), chain.decode())
    note = {"names": list(names), "ends": ends, "authority_ends": authority.ends, "ca": ca.read_text()}
    durable.write(str(_note_file(files)), json.dumps(note))


def interception_files(data: Path) -> Interception:
    """Return the paths of the files in a data directory. The files may not exist."""
    return Interception(data / "tls" / "storage-relay.pem", data / "trust" / "roots.pem")


def prepare_interception(data: Path, now: float, environ: Mapping[str, str]) -> Interception:
    """Create or renew the files if necessary, and return their paths.

    `now`: seconds since the epoch. `environ`: the service's environment. Raises CertificatesUnusable,
    OSError.
    """
    interception = interception_files(data)
    names = (*regions.STORAGE, "*.storage.googleapis.com", *regions.apis())
    storage = issue_certificate(data / "tls", "storage", names, now)
    _write_if_changed(interception.certificate, storage.key.read_text() + storage.chain.read_text(), 0o600)
    interception.trust.parent.mkdir(mode=0o755, exist_ok=True)
    interception.trust.parent.chmod(0o755)
    _write_if_changed(interception.trust, "".join(_roots(storage.ca, environ)), 0o644)
    return interception


def _roots(ca: Path, environ: Mapping[str, str]) -> Iterable[str]:
    """Return the service's own root and all roots of this machine and of `environ`, without duplicates.
    Programs that use the file trust no other roots."""
    usual = ssl.get_default_verify_paths().cafile
    paths = [environ[name] for name in _TRUSTED_BY if environ.get(name)]
    texts = [ca.read_text()]
    for path in (*paths, *([usual] if usual else []), *roots.PLACES):
        # Ignore an unreadable file. Without this service, the program could not read the file either.
        with contextlib.suppress(OSError):
            texts.append(Path(path).read_text(errors="replace"))
    if not (usual or any(map(os.path.isfile, roots.PLACES))):
        texts += public_roots()
    blocks: dict[str, None] = {}
    for text in texts:
        for block in text.split(_END)[:-1]:
            begin = block.rfind("-----BEGIN CERTIFICATE-----")
            if begin >= 0:
                blocks[f"{block[begin:]}{_END}\n"] = None
    return blocks


def _write_if_changed(path: Path, text: str, mode: int) -> None:
    """Write a file atomically, unless it already has this text and mode."""
    with contextlib.suppress(OSError):  # A missing file is written below.
        if path.read_text() == text and path.stat().st_mode & 0o777 == mode:
            return
    durable.write(str(path), text)
    path.chmod(mode)


if __name__ == "__main__":
    try:
        _create(_files_of(Path(sys.argv[1])), tuple(sys.argv[3:]), float(sys.argv[2]))
    except (OSError, ValueError) as failure:
        sys.exit(str(failure))
