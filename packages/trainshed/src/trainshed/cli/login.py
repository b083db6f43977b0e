"""`trainshed login`: signs the command line of this machine in to a service, as the person in a browser.

A page of the console asks, and gives a code (`/login/command-line`): to a port of this machine on which the
command waits (RFC 8252), or, where no browser is, to the person, who pastes it. Only who began can change the
code for a token (RFC 7636).
"""

import base64
import hashlib
import json
import os
import secrets
import sys
import webbrowser
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import click

from trainshed.cli.client import Client, Refused, Unreachable
from trainshed.cli.connection import known_login, login_file, remote
from trainshed.replica.system import durable
from trainshed.wire.trainshed_v1.access import Identity, IssuedToken
from trainshed.wire.trainshed_v1.record import read

_PATIENCE = 600.0
"""Seconds that a person may take in the browser."""
_SILENCE = 1.0
"""Seconds that a connection may be silent: browsers open some of which they make no use."""
_ADVICE = "Check the address."


@click.command(short_help="Sign in to a service on another machine.")
@click.argument("url", required=False)
@click.option("--token", metavar="TOKEN", help="A token that you have; - reads it from the input.")
@click.option("--ca", metavar="FILE", help="PEM file to trust for https. Default: $TRAINSHED_CA.")
@click.option("--no-browser", is_flag=True, help="Print the address, and ask for the code.")
@click.option("--forget", is_flag=True, help="Forget the service; a token from a browser ends.")
def command(
    url: str | None, *, token: str | None, ca: str | None, no_browser: bool, forget: bool
) -> None:
    """Sign in to the service at URL with a browser. From then on your commands on this machine go there,
    unless TRAINSHED_ENDPOINT, TRAINSHED_DATA, --url or --data name another. Without URL: to the same again.

    A token that the browser gives is good for twelve hours at most. It is kept in login.json, below
    $XDG_CONFIG_HOME or ~/.config, for this user alone.
    """
    known, file = known_login(), login_file()
    if forget:
        file.unlink(missing_ok=True)
        stays = _ended(known) if known else ""
        click.echo(f"{known['url']} is forgotten.{stays}" if known else "No service is known.")
        return
    address = (url or known.get("url", "")).rstrip("/")
    if not address:
        raise click.UsageError("Name the service: trainshed login https://HOST")
    trusted = str(Path(ca).absolute()) if ca else remote(address, "", "").ca
    if token == "-" and not (token := sys.stdin.readline().strip()):
        raise click.UsageError("The input has no token.")
    if not token:
        token = _by_browser(Client(address, "", _ADVICE, ca=trusted), has_browser=not no_browser)
    me = read(Client(address, token, _ADVICE, ca=trusted).get("/trainshed/v1/whoami"), Identity)
    content = json.dumps({"url": address, "token": token, "ca": trusted or ""})
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable.write(str(file), content, is_shared=True)
    except OSError as failure:
        raise click.FileError(str(file), failure.strerror) from None
    click.echo(
        f"{me.email}  is signed in at {address}. Commands go there; trainshed login --forget"
    )


def _ended(known: Mapping[str, str]) -> str:
    """End the token that a browser gave for the service. Return what is to be said of one that stays."""
    token = known["token"]
    client = Client(known["url"], token, _ADVICE, ca=known["ca"])
    try:
        if not read(client.get("/trainshed/v1/whoami"), Identity).issuer:
            return " The token stays valid until somebody deletes it."
        client.delete(f"/trainshed/v1/tokens/{hashlib.sha256(token.encode()).hexdigest()[:12]}")
    except Refused:
        return ""  # It is not known any more.
    except Unreachable:
        return " It does not answer: its token stays valid until it ends."
    return ""


def _by_browser(client: Client, *, has_browser: bool) -> str:
    """Return the token that a person gives in a browser. Raises Refused, Unreachable."""
    # Nobody is sent to a page that is not there.
    client.get("/healthz")
    verifier = secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    page = f"{client.address}/login/command-line?"
    with _Listener() as listener:
        query = {"challenge": challenge, "port": str(listener.server_port)}
        if has_browser and _opens(page + urlencode(query)):
            click.echo(f"Go on in the browser, at {page}{urlencode(query)}", err=True)
            code = listener.code()
        else:
            click.echo(f"Open this in a browser: {page}challenge={challenge}", err=True)
            code = click.prompt("Code", err=True)
    answer = client.post_form("/login/token", {"code": code, "verifier": verifier})
    return read(answer, IssuedToken).token


def _opens(page: str) -> bool:
    # Without a screen, Python would open a browser in this terminal.
    has_screen = sys.platform != "linux" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    return bool(has_screen) and webbrowser.open(page)


class _Listener(HTTPServer):
    """Waits on a port of this machine for the code."""

    timeout = _PATIENCE

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answering)
        self.received = ""

    def code(self) -> str:
        """Return the code once a browser has brought it. Raises Refused."""
        while not self.received:
            self.handle_request()
        return self.received

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: what came was no browser, or one that has gone."""

    def handle_timeout(self) -> None:
        raise Refused(0, "Nobody signed in within ten minutes: run trainshed login again.")


class _Answering(BaseHTTPRequestHandler):
    timeout = _SILENCE

    def do_GET(self) -> None:
        code = parse_qs(urlsplit(self.path).query).get("code", [""])[0]
        assert isinstance(self.server, _Listener)
        self.server.received = code
        text = b"Go back to the terminal. You can close this page." if code else b""
        self.send_response(200 if code else 404)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
        """Say nothing of it on the terminal."""
