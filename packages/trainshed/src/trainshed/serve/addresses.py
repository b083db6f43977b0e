"""Publishes the addresses of a service for users, the command line, and replicas' endpoints."""

import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from trainshed.httpd.hosts import Hosts, is_loopback, parse_list
from trainshed.replica.system import durable
from trainshed.serve.settings import Settings, speaks_tls

SERVICE_FILE = "service.json"
"""The file in the data directory, with mode 0600, that contains the addresses of the service and its owner's
token."""


class GrpcPorts(Struct, frozen=True):
    """The host and port of gRPC without TLS and with TLS."""

    plain: tuple[str, int]
    secure: tuple[str, int]


def own_hosts(settings: Settings) -> Hosts:
    """Return the allowed host names of the service, and the origins of web pages that may call it."""
    page = urlsplit(settings.web_url or "")
    mine = (settings.host, socket.gethostname(), page.hostname or "")
    names = {name.lower() for name in mine if name} | {"*.googleapis.com"}
    origins = (f"{page.scheme}://{page.netloc}".lower(),) if page.netloc else ()
    return Hosts((*sorted(names), *parse_list(settings.allowed_hosts)), origins)


_WILDCARDS = ("", "0.0.0.0", "::")


def secure_address(settings: Settings, port: int) -> str:
    """Return the `host:port` at which clients call a port with TLS. The host is a name in the certificate."""
    host = settings.host
    return address_of("localhost" if is_loopback(host) or host in _WILDCARDS else host, port)


def web_address(settings: Settings, port: int) -> str:
    """Return the URL of a port for clients on this machine, or on any machine if the service is open to
    others. The scheme is https if other machines must use TLS."""
    host = settings.host
    if speaks_tls(settings) and not is_loopback(host):
        return f"https://{secure_address(settings, port)}"
    return f"http://{address_of('127.0.0.1' if host in _WILDCARDS else host, port)}"


def browsers_address(settings: Settings, port: int) -> str:
    return (settings.web_url or web_address(settings, port)).rstrip("/")


def pages_host(settings: Settings, address: str) -> str | None:
    """Return the parent host name of job pages, with the port of `address`; None = job pages are unavailable.

    `address`: the service's URL for browsers. Browsers resolve all names below `localhost` to their own
    machine.
    """
    here = urlsplit(address)
    port = f":{here.port}" if here.port else ""
    if here.hostname == "localhost" or is_loopback(here.hostname or ""):
        return f"localhost{port}"
    below = [name[2:] for name in parse_list(settings.allowed_hosts) if name.startswith("*.")]
    return f"{below[0]}{port}" if below else None


def address_of(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def write_private(path: Path, content: dict[str, Any] | str) -> None:
    """Replace a JSON or text file atomically. Only its owner can read it. Readers see the old or the new
    content."""
    text = content if isinstance(content, str) else json.dumps(content) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(str(path), text, sync=False, is_shared=True)
