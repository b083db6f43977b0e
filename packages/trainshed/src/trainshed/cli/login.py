"""`trainshed login`: signs in this machine's command line to a service as the user who is signed in to the
browser.

A page of the console (`/login/command-line`) asks the user for consent and creates a code. The browser sends
the code to a port on which the command waits (RFC 8252). Without a browser, the user pastes the code. Only
the command that created the request can exchange the code for a token (RFC 7636).
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

from trainshed.cli.client import Client, RequestError, Unreachable
from trainshed.cli.connection import known_login, login_file, remote
from trainshed.replica.system import durable
from trainshed.wire.trainshed_v1.access import Identity, IssuedToken
from trainshed.wire.trainshed_v1.record import read

_SIGN_IN_TIMEOUT = 600.0
"""Maximum seconds for the user to sign in with the browser."""
_SOCKET_TIMEOUT = 1.0
"""Maximum seconds without data on a connection. Browsers open connections that they do not use."""
_ADVICE = "Check the address."


@click.command(short_help="Sign in to a service on another machine.")
@click.argument("url", required=False)
@click.option(
    "--token",
    metavar="TOKEN",
    help="Sign in with this token; - reads it from standard input. Default: sign in with a browser.",
)
@click.option(
    "--ca",
    metavar="FILE",
    help="PEM file with the certificate authorities to trust for https. Default: $TRAINSHED_CA.",
)
@click.option(
    "--no-browser", is_flag=True, help="Open no browser: print the sign-in address, and prompt for the code."
)
@click.option(
    "--forget",
    is_flag=True,
    help="Sign out: delete the stored login. Revoke its token if a browser sign-in created it.",
)
def command(url: str | None, *, token: str | None, ca: str | None, no_browser: bool, forget: bool) -> None:
    """Sign in to the service at URL with a browser. Your commands on this machine then use this service,
    unless TRAINSHED_ENDPOINT, TRAINSHED_DATA, --url or --data specify another one. Default of URL: the
    current service.

    A token that the browser creates is valid for at most twelve hours. The login is stored in login.json
    below $XDG_CONFIG_HOME or ~/.config. Only this user can read it.
    """
    known, file = known_login(), login_file()
    if forget:
        file.unlink(missing_ok=True)
        remark = _revoke_token(known) if known else ""
        click.echo(
            f"The login at {known['url']} is deleted.{remark}" if known else "There is no login to delete."
        )
        return
    address = (url or known.get("url", "")).rstrip("/")
    if not address:
        raise click.UsageError("The URL of the service is missing. Run: trainshed login https://HOST")
    trusted = str(Path(ca).absolute()) if ca else remote(address, "", "").ca
    if token == "-" and not (token := sys.stdin.readline().strip()):
        raise click.UsageError(
            "Standard input contains no token. Write the token to standard input, or omit --token to use a "
            "browser."
        )
    if not token:
        token = _sign_in_with_browser(Client(address, "", _ADVICE, ca=trusted), has_browser=not no_browser)
    me = read(Client(address, token, _ADVICE, ca=trusted).get("/trainshed/v1/whoami"), Identity)
    content = json.dumps({"url": address, "token": token, "ca": trusted or ""})
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        durable.write(str(file), content, is_shared=True)
    except OSError as failure:
        raise click.FileError(str(file), failure.strerror) from None
    click.echo(
        f"{me.email}  is signed in at {address}. Your commands use this service. To sign out: trainshed "
        "login --forget"
    )


def _revoke_token(known: Mapping[str, str]) -> str:
    """Revoke the token that was created with a browser for the service. Return a warning if the token remains
    valid."""
    token = known["token"]
    client = Client(known["url"], token, _ADVICE, ca=known["ca"])
    try:
        if not read(client.get("/trainshed/v1/whoami"), Identity).issuer:
            return " The token remains valid until it is deleted."
        client.delete(f"/trainshed/v1/tokens/{hashlib.sha256(token.encode()).hexdigest()[:12]}")
    except RequestError:
        return ""  # No warning: the token does not exist anymore.
    except Unreachable:
        return " The service does not answer, so the token remains valid until it expires."
    return ""


def _sign_in_with_browser(client: Client, *, has_browser: bool) -> str:
    """Return the token that the user creates with a browser. Raises RequestError, Unreachable."""
    # If the service does not respond, this request raises an error before the user opens a page that does not
    # exist.
    client.get("/healthz")
    verifier = secrets.token_urlsafe(48)
    digest = hashlib.sha256(verifier.encode()).digest()
    challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    page = f"{client.address}/login/command-line?"
    with _Listener() as listener:
        query = {"challenge": challenge, "port": str(listener.server_port)}
        if has_browser and _open_page(page + urlencode(query)):
            click.echo(f"Continue in the browser, at {page}{urlencode(query)}", err=True)
            code = listener.code()
        else:
            click.echo(f"Open this in a browser: {page}challenge={challenge}", err=True)
            code = click.prompt("Code", err=True)
    answer = client.post_form("/login/token", {"code": code, "verifier": verifier})
    return read(answer, IssuedToken).token


def _open_page(page: str) -> bool:
    # Without a display, Python would open a text browser in this terminal.
    has_screen = sys.platform != "linux" or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    return bool(has_screen) and webbrowser.open(page)


class _Listener(HTTPServer):
    """Waits for the code on a port of this machine."""

    timeout = _SIGN_IN_TIMEOUT

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _CodeHandler)
        self.received = ""

    def code(self) -> str:
        """Wait until a browser sends the code, and return it. Raises RequestError."""
        while not self.received:
            self.handle_request()
        return self.received

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: the client is not a browser, or has closed its connection."""

    def handle_timeout(self) -> None:
        raise RequestError(0, "The sign-in was not completed within ten minutes. Run trainshed login again.")


class _CodeHandler(BaseHTTPRequestHandler):
    timeout = _SOCKET_TIMEOUT

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
        """Do not print requests on the terminal."""
