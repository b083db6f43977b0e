"""Issues the certificates by which agents and their service authenticate each other. The engine's own
certificate authority signs them. Only agents and the hub (the service's server for agents) trust this
authority.

Agents verify that the authority issued the hub's certificate, and that it contains the hub's name. For each
connection, the hub verifies the agent's certificate, and that an agent of that name is expected. Agents'
certificates also expire. Only the service imports `cryptography`, when it opens its `Issuer`.
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
"""Name in the certificate of the hub, the service's server for agents. Agents verify this name, whatever
address they connect to."""
_SCHEME: Final = "trainshed-agent:"
_VALID_FROM: Final = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
_VALID_UNTIL: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""Expiry time of the certificates of the certificate authority and of the hub (the server for agents). It is
so far in the future that a wrong clock of a node does not matter. Whether an agent's certificate has expired
depends on the service's clock."""


class Credential(Struct, frozen=True):
    """The secret of one agent: the address of the hub (the service's server for agents), and the agent's
    certificates."""

    #: The agent's name. It consists of the name of its allocation, its node, and a random suffix, separated
    #: by "/".
    name: str
    #: Host to which the agent connects.
    host: str
    port: int
    #: PEM certificate of the only authority that the agent trusts.
    authority: str
    #: PEM certificate of the agent.
    certificate: str
    #: PEM private key of the agent.
    key: str


class Issuer:
    """Signs the certificates of agents and of their server, the hub. May be used from any event loop or
    thread. A signature takes a millisecond."""

    def __init__(self, authority: "Authority") -> None:
        self._authority = authority
        #: The authority's certificate as PEM.
        self.authority: Final = authority.certificate_pem().decode()

    @classmethod
    def open(cls, directory: Path) -> "Issuer":
        """Open the certificate authority in `directory`, or create one there. Blocks while it reads or writes
        files and imports a library. Raises ValueError if the stored authority is invalid (the message
        contains a remedy), and OSError."""
        from trainshed.access.authority import Authority

        certificate, key = directory / "authority.pem", directory / "authority.key"
        if certificate.exists():
            try:
                return cls(Authority.read(certificate.read_bytes(), key.read_bytes()))
            except (FileNotFoundError, ValueError) as error:
                raise ValueError(
                    f"{certificate} and {key} are not a valid authority: {error}. Restore both from a backup "
                    "or move both away. With the new authority, running agents cannot connect again."
                ) from None
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority = Authority.new(_VALID_FROM, _VALID_UNTIL - _VALID_FROM)
        # Write the certificate last. If only the key exists, it was never used and may be replaced.
        durable.write(str(key), authority.key_pem())
        durable.write(str(certificate), authority.certificate_pem())
        return cls(authority)

    def server(self) -> ssl.SSLContext:
        """Return the TLS context of the hub, the server for agents. It accepts only TLS 1.3, and only peers
        with a certificate that this authority issued to an agent."""
        context = _context(ssl.PROTOCOL_TLS_SERVER, self.authority)
        certificate, key = self._authority.issue((SERVER_NAME,), _VALID_FROM, _VALID_UNTIL)
        _show(context, certificate, key)
        # Disable the resumption of sessions, so that the agent presents its certificate on each connection.
        context.num_tickets = 0
        return context

    def issue(self, name: str, ends: float) -> tuple[str, str]:
        """Return a certificate for the agent of that name, and the certificate's key. `ends`: expiry time in
        seconds since the epoch. The start of the validity is in the past, in case a clock is set back."""
        certificate, key = self._authority.issue_client(_SCHEME + quote(name), _VALID_FROM, ends)
        return certificate.decode(), key.decode()


def client(credential: Credential) -> ssl.SSLContext:
    """Return an agent's TLS context. It uses only TLS 1.3, and connects only to the hub (the service's server
    for agents) that the credential belongs to. Raises OSError. That includes ssl.SSLError for an invalid
    credential."""
    context = _context(ssl.PROTOCOL_TLS_CLIENT, credential.authority)
    _show(context, credential.certificate.encode(), credential.key.encode())
    return context


def certificate_name(certificate: Any) -> str | None:
    """Return the name of the agent in a verified certificate; None = the certificate does not belong to an
    agent. `certificate`: in the format of `getpeercert`."""
    shown: dict[str, Any] = certificate or {}
    for kind, value in shown.get("subjectAltName", ()):
        if kind == "URI" and value.startswith(_SCHEME):
            return unquote(value.removeprefix(_SCHEME))
    return None


def certificate_expiry(certificate: Any) -> float:
    """Return the expiry time of a certificate in seconds since the epoch."""
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
    """Provide a path from which `secret` can be read, because OpenSSL only reads files. The file is only in
    memory."""
    with os.fdopen(os.memfd_create("credential", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(secret)
        yield f"/proc/self/fd/{file.fileno()}"
