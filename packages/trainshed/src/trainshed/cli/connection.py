"""Finds the service that a command uses: from the command line, the environment, the user's login, or on this
machine.

A running service writes `service.json` into its data directory. The file contains its addresses, token and
process ID.
"""

import functools
import json
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from trainshed.cli.client import Client, Unreachable
from trainshed.replica import protocol
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed.wire.trainshed_v1.record import read

R = TypeVar("R")

_START = "Start one: trainshed up"
PROJECT, REGION = "trainshed.project", "trainshed.region"
"""Keys of a command's context. Their values come from `project_option` and `place_options`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of a service and other facts for clients, as in its `service.json`. None = unknown."""

    #: The URL of the REST API, `http://host:port` or `https://host:port`. `storage` has the same form.
    rest: str
    #: Secret: errors and dumps do not contain it.
    token: str = field(repr=False)
    storage: str | None = None
    #: `host:port` of storage with TLS. The next two fields have the same form.
    storage_tls: str | None = None
    #: gRPC without TLS.
    grpc: str | None = None
    grpc_tls: str | None = None
    #: A PEM file of authorities for gRPC clients to trust.
    ca_bundle: str | None = None
    #: A PEM file of authorities to trust for https.
    ca: str | None = None
    #: Default project and region: from the environment, otherwise from the service; "" = not requested yet.
    project: str = ""
    region: str = ""
    #: The default bucket of `project`; "" = not requested yet.
    bucket: str = ""
    #: The service's process ID. This field and the next three are set only for a service on this machine; 0 =
    #: unknown.
    pid: int = 0
    #: Start time of the service's process (`protocol.process_start`). After a reboot, another process may
    #: have its ID.
    since: int = 0
    #: The service's data directory.
    data: Path | None = None
    #: The directory whose subdirectories are the buckets.
    buckets: Path | None = None
    #: The advice in the error if the service does not respond.
    advice: str = _START

    def client(self, *, raw: bool = False) -> Client:
        """Return a client of the APIs. `raw`: texts in responses remain unchanged, for output as JSON."""
        data = self.data
        find_address = (lambda: local(data, self.token).rest) if data is not None else None
        return Client(self.rest, self.token, self.advice, find_address, ca=self.ca, raw=raw)

    def storage_client(self) -> Client:
        """Return a client for the objects of buckets. It does not change the objects' names."""
        return Client(self.storage or self.rest, self.token, self.advice, ca=self.ca, raw=True)


def data_directory(directory: Path | None) -> Path:
    """Return the data directory: `directory`, else $TRAINSHED_DATA, else `~/.trainshed`."""
    place = directory or os.environ.get("TRAINSHED_DATA") or Path.home() / ".trainshed"
    return Path(place).expanduser().absolute()


def find(url: str | None, token: str | None, data: Path | None, ca: str | None = None) -> Endpoint:
    """Return the service that these options, the environment, the login or the data directory specify.

    Does not connect to the service. Raises Unreachable if no service is specified and none runs in the data
    directory.
    """
    if url is None and data is None and (address := os.environ.get("TRAINSHED_ENDPOINT")):
        return remote(
            address,
            token,
            f"The address is from this shell's variable TRAINSHED_ENDPOINT. {_START}; then update the "
            'variable: eval "$(trainshed env)"',
            ca,
        )
    return find_here(url, token, data, ca)


def find_here(url: str | None, token: str | None, data: Path | None, ca: str | None) -> Endpoint:
    """Find the service as `find` does, but ignore TRAINSHED_ENDPOINT."""
    if url is not None:
        return remote(url, token, "Check the address of --url.", ca)
    login = known_login() if data is None and "TRAINSHED_DATA" not in os.environ else {}
    if login:
        # A token in the environment may belong to another service.
        token, ca = token or login["token"], ca or login["ca"]
        return remote(login["url"], token, "To use another service: trainshed login URL", ca)
    return local(data_directory(data), token)


def login_file() -> Path:
    """Return the file that contains the service and the token of `trainshed login`. A relative
    XDG_CONFIG_HOME is ignored, as the XDG specification requires."""
    place = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (place if place.is_absolute() else Path.home() / ".config") / "trainshed/login.json"


def known_login() -> dict[str, str]:
    """Return `url`, `token` and `ca` of this user's login, or {} without a login."""
    try:
        login: dict[str, str] = json.loads(login_file().read_bytes())
        return {key: str(login[key]) for key in ("url", "token", "ca")}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def local(data: Path, token: str | None = None) -> Endpoint:
    """Return the service of a data directory. Raises Unreachable if no service runs there,
    click.ClickException if its file cannot be read."""
    file = data / "service.json"
    try:
        service = msgspec.json.decode(
            file.read_bytes(), type=Endpoint, strict=False, dec_hook=lambda kind, text: kind(text)
        )
        if service.data and service.data.exists() and not service.data.samefile(data):
            # No service runs with this directory. It is a copy of another data directory, and the service in
            # the file belongs to the original.
            raise FileNotFoundError
    except FileNotFoundError:
        raise Unreachable(
            f"No Trainshed service is running with its data in {data}. {_start_at(data)}\nTo use a service "
            "elsewhere: trainshed login URL"
        ) from None
    except (OSError, ValueError) as failure:
        raise click.ClickException(
            f"{file} cannot be read ({type(failure).__name__}: {failure}). Restart the service, which "
            "writes the file again."
        ) from None
    if not protocol.is_process(service.pid, service.since):
        raise Unreachable(
            f"No Trainshed service is running with its data in {data} (the last one, process "
            f"{service.pid}, has ended). {_start_at(data)}"
        )
    advice = (
        f"The service with its data in {data} does not answer. It may be starting, or it has ended. "
        f"{_start_at(data)}"
    )
    return replace(service, token=token or service.token, data=data, advice=advice)


def data_option(data: Path) -> str:
    """Return the shell words that select this data directory in a command; "" for `~/.trainshed`."""
    return "" if data == Path.home() / ".trainshed" else f" --data {shlex.quote(str(data))}"


def _start_at(data: Path) -> str:
    return f"{_START}{data_option(data)}"


def endpoint_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add --url, --token, --ca and --data to a command. The decorator passes the selected service as the
    command's first argument."""

    @service_options
    @functools.wraps(command)
    def connected(service: Callable[[], Endpoint], *args: Any, **options: Any) -> R:
        return command(service(), *args, **options)

    return connected


def service_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add --url, --token, --ca and --data to a command that may run without a service. The decorator passes a
    function that returns the selected service."""

    @connection_options
    @functools.wraps(command)
    def finding(
        *args: Any, url: str | None, token: str | None, data: Path | None, ca: str | None, **options: Any
    ) -> R:
        meta = click.get_current_context().meta

        def service() -> Endpoint:
            known = find(url, token, data, ca)
            project, region = meta.get(PROJECT), meta.get(REGION)
            return replace(known, project=project or known.project, region=region or known.region)

        return command(service, *args, **options)

    return finding


def connection_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add --url, --token, --ca and --data to a command. The decorator passes their values."""
    url_option = click.option(
        "--url",
        metavar="URL",
        help="Address of the service, such as http://host:8080. Default: $TRAINSHED_ENDPOINT, the login, "
        "or the local service.",
    )
    known = click.option("--token", metavar="TOKEN", help="Token for --url. Default: $TRAINSHED_TOKEN.")
    trusted = click.option(
        "--ca",
        metavar="FILE",
        help="PEM file with the certificate authorities to trust for https. Default: $TRAINSHED_CA.",
    )
    directory = click.option(
        "--data",
        type=click.Path(path_type=Path),
        help="Data directory of a local service. Default: $TRAINSHED_DATA or ~/.trainshed.",
    )
    return url_option(known(trusted(directory(command))))


def require_local_service(endpoint: Endpoint, url: str, command: str) -> None:
    """Raise click.UsageError if --url is the address of another service than that of the data directory.
    Commands that need the service's files or its process call this function. `command`: the command, for the
    error."""
    if _address(url) != _address(endpoint.rest):
        raise click.UsageError(
            "This command must run on the machine of the service. The service with its data in "
            f"{endpoint.data} is at {endpoint.rest}, not at {url}. On the machine of {url}, run: trainshed "
            f"{command} --data DIRECTORY"
        )


def _address(url: str) -> tuple[str, int | None]:
    """Return (host, port) of a URL. All names of this machine become 127.0.0.1."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    return ("127.0.0.1" if host in ("localhost", "::1") else host, parts.port)


def remote(url: str, token: str | None, advice: str, ca: str | None = None) -> Endpoint:
    """Return the service at an address. If the token or `ca` is not specified, it comes from the environment,
    or else from the login at this address."""
    environ, login = os.environ, known_login()
    known = login if login.get("url") == url.rstrip("/") else {}
    trusted = ca or environ.get("TRAINSHED_CA") or known.get("ca")
    return Endpoint(
        rest=url.rstrip("/"),
        token=token or environ.get("TRAINSHED_TOKEN") or known.get("token", ""),
        # Absolute, because the shell that receives the variable may be in another directory.
        ca=str(Path(trusted).absolute()) if trusted else None,
        project=environ.get("GOOGLE_CLOUD_PROJECT") or environ.get("GCLOUD_PROJECT", ""),
        region=environ.get("GOOGLE_CLOUD_REGION", ""),
        advice=advice,
    )


def with_defaults(endpoint: Endpoint, project: str | None = None) -> Endpoint:
    """Request the status of the service, and return the endpoint with the service's defaults.

    `project`: the project whose default bucket is returned. None = the endpoint's project, otherwise the
    service's default. Raises RequestError, Unreachable.
    """
    whose = project or endpoint.project or None
    status = read(endpoint.client().get("/trainshed/v1/status", project=whose), Status)
    return replace(
        endpoint,
        project=whose or status.project,
        region=endpoint.region or status.region,
        bucket=status.bucket or endpoint.bucket,
    )


def project_of(endpoint: Endpoint) -> str:
    """Return the project of a command without --project: from the environment, otherwise the service's
    default. Raises RequestError, Unreachable."""
    return endpoint.project or with_defaults(endpoint).project


def project_option(text: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add `--project` to a command that has `endpoint_options`. `text`: the beginning of the help text."""
    return _context_option("project", text)


def place_options(what: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add `--project` and `--region` to a command that has `endpoint_options`. `what`: the kind of thing that
    they locate, for the help text."""
    project = project_option(f"Project of the {what}.")
    region = _context_option("region", f"Region of the {what}.")
    return lambda command: project(region(command))


def _context_option(name: str, text: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    def note(context: click.Context, _: click.Parameter, value: str | None) -> None:
        context.meta[f"trainshed.{name}"] = value

    help_text = f"{text} Default: the service's default {name}."
    return click.option(f"--{name}", metavar=name.upper(), help=help_text, callback=note, expose_value=False)


def place_of(endpoint: Endpoint) -> dict[str, str]:
    """Return the project and region as parameters of a request. They come from the command, otherwise from
    the environment, otherwise from the service's defaults. Raises RequestError, Unreachable."""
    if not endpoint.project or not endpoint.region:
        endpoint = with_defaults(endpoint)
    return {"project": endpoint.project, "region": endpoint.region}
