"""Says where a service is: to people, to a ready file or descriptor, and to the command line's look-up."""

import contextlib
import ipaddress
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainshed.httpd.hosts import Hosts, listed
from trainshed.serve.settings import Settings

if TYPE_CHECKING:
    from trainshed.serve.grpc_front import GrpcDoors

SERVICE_FILE = "service.json"
"""In the data directory, mode 0600: how `trainshed` commands find the service and its owner's token."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def own_hosts(settings: Settings) -> Hosts:
    """By which names the service may be called, and which pages may do so."""
    page = urlsplit(settings.web_url)
    mine = (settings.host, socket.gethostname(), page.hostname or "")
    names = {name.lower() for name in mine if name} | {"*.googleapis.com"}
    origins = {f"{page.scheme}://{page.netloc}".lower()} if page.netloc else set[str]()
    return Hosts(
        (*sorted(names), *listed(settings.allowed_hosts)),
        (*sorted(origins), *listed(settings.allowed_origins)),
    )


def secure_addresses(doors: "GrpcDoors | None", host: str, storage_tls_port: int) -> dict[str, str]:
    """Where gRPC and storage are: `grpc` without TLS, on this machine; `grpc_tls` and `storage_tls` as a client is to call
    them, so that the name is one of the certificate's; `ca`, what the client has to trust, and `ca_bundle`, the same with everybody's roots (paths)."""
    if doors is None:
        return {}
    certificates = doors.certified.result()
    here, port = doors.plain.getsockname()[:2]
    called = "localhost" if is_loopback(host) or host in ("", "0.0.0.0", "::") else host
    return {
        "grpc": _address(here, port),
        "grpc_tls": _address(called, doors.secure.getsockname()[1]),
        "storage_tls": _address(called, storage_tls_port),
        "ca": str(certificates.ca),
        "ca_bundle": str(certificates.roots),
    }


def web_address(host: str, listener: socket.socket) -> str:
    """Where browsers on this machine, or where `host` is reached, find the service."""
    here = host if host not in ("", "0.0.0.0", "::") else "127.0.0.1"
    return f"http://{_address(here, listener.getsockname()[1])}"


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def write_private(path: Path, document: dict[str, Any]) -> None:
    """Replace a JSON file at once, readable by its owner alone; a reader sees the old or the new one."""
    write_private_text(path, json.dumps(document) + "\n")


def write_private_text(path: Path, text: str) -> None:
    """The same with any text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def write_line(descriptor: int, document: dict[str, Any]) -> None:
    """One JSON line into a descriptor that a parent process gave, which is then closed."""
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(document) + "\n")
