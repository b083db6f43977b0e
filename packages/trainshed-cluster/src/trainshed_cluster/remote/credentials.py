"""Issues the certificates by which agents and their service know each other, signed by an authority of the
engine's own, which nothing else trusts.

Agents check the authority and the hub's name; the hub checks the authority and asks for each connection
whether an agent of that name is expected now. Agents' certificates also expire. `cryptography` is loaded by
the service alone, when its `Issuer` is opened.
"""

import os
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from msgspec import Struct

from trainshed.replica.system import durable

if TYPE_CHECKING:
    from trainshed.access.authority import Authority

SERVER_NAME: Final = "hub.trainshed.internal"
"""What the hub's certificate names. Agents compare it, wherever they reach the hub."""
_SCHEME: Final = "trainshed-agent:"
_BEGINS: Final = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
_ENDS: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""Of the authority and of the hub: no clock of a node that is wrong keeps an agent from its service. What
ends are the certificates of agents, by the service's clock."""


class Credential(Struct, frozen=True):
    """What one agent is given, as a secret: the address of the hub, and the certificates."""

    #: The agent's name: its hold's name, "/", and its node.
    name: str
    #: Host that it dials.
    host: str
    port: int
    #: PEM of the only authority that it trusts; then of its own certificate, and of its key.
    authority: str
    certificate: str
    key: str


class Issuer:
    """Signs the certificates of the hub and of agents. It is not bound to an event loop; a signature takes a
    millisecond."""

    def __init__(self, authority: "Authority") -> None:
        self._authority = authority
        #: The authority's certificate as PEM.
        self.authority: Final = authority.certificate_pem().decode()

    @classmethod
    def open(cls, directory: Path) -> "Issuer":
        """Open the authority in `directory`, made if there is none. Blocks on the disk and on importing a
        library. Raises ValueError, which says what to do, and OSError."""
        from trainshed.access.authority import Authority

        certificate, key = directory / "authority.pem", directory / "authority.key"
        if certificate.exists():
            try:
                return cls(Authority.read(certificate.read_bytes(), key.read_bytes()))
            except (FileNotFoundError, ValueError) as error:
                raise ValueError(
                    f"{certificate} and {key} are no authority: {error}. Restore both from a backup, or move "
                    "both away: then a new authority is made, and agents that run now are not let in again."
                ) from None
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority.new(_BEGINS, _ENDS - _BEGINS)
        # The certificate is written last: a key without one was never used.
        durable.write(str(key), authority.key_pem())
        durable.write(str(certificate), authority.certificate_pem())
        return cls(authority)

    def server(self) -> ssl.SSLContext:
        """Return the hub's TLS context: TLS 1.3, and only with peers that show an agent's certificate of this
        authority."""
        context = _context(ssl.PROTOCOL_TLS_SERVER, self.authority)
        certificate, key = self._authority.issue((SERVER_NAME,), _BEGINS, _ENDS)
        _show(context, certificate, key)
        # No session is resumed: each connection shows its certificate anew.
        context.num_tickets = 0
        return context

    def issue(self, name: str, ends: float) -> tuple[str, str]:
        """Return a certificate for the agent of that name, valid until `ends` (seconds since the epoch), and
        its key. It has been valid for ever: clocks that are set back refuse nobody."""
        certificate, key = self._authority.issue_client(_SCHEME + quote(name), _BEGINS, ends)
        return certificate.decode(), key.decode()


def client(credential: Credential) -> ssl.SSLContext:
    """Return an agent's TLS context: TLS 1.3, and only with the server that its credential names. Raises
    OSError, also as ssl.SSLError if the credential is invalid."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, credential.authority)
    _show(context, credential.certificate.encode(), credential.key.encode())
    return context


def shown_name(certificate: Any) -> str | None:
    """Return the agent's name in a verified certificate (as `getpeercert` returns it); None = none."""
    shown: dict[str, Any] = certificate or {}
    for kind, value in shown.get("subjectAltName", ()):
        if kind == "URI" and value.startswith(_SCHEME):
            return unquote(value.removeprefix(_SCHEME))
    return None


def shown_end(certificate: Any) -> float:
    """Return until when a certificate is valid, in seconds since the epoch."""
    return float(ssl.cert_time_to_seconds(certificate["notAfter"]))


def _context(protocol: int, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    return context


def _show(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    with _readable(key + certificate) as path:
        context.load_cert_chain(path)


@contextmanager
def _readable(secret: bytes) -> Generator[str]:
    """Context with a path, in memory, at which OpenSSL, which only reads files, finds `secret`."""
    with os.fdopen(os.memfd_create("credential", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(secret)
        yield f"/proc/self/fd/{file.fileno()}"
