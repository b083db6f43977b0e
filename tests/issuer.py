"""An OpenID Connect issuer on this machine, with claims chosen by the test."""

import itertools
import json
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey
from msgspec.structs import replace

from trainshed.access.issuers import Issuer

CLIENT = "trainshed-console"
GCLOUD = "32555940559.apps.googleusercontent.com"
_numbers = itertools.cycle(range(2))
"""A pool of keys, because generating a key takes longer than most tests. Two issuers of a test have different
keys.
"""


class ScriptedIssuer:
    """An issuer. `claims`: claims about the user who signs in, in addition to the required claims of ID
    tokens.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.keys = [_kept_key(next(_numbers))]
        self.claims: dict[str, Any] = {"email": "ana@corp.example", "email_verified": True}
        #: The authorization requests of browsers, by the codes that they received.
        self.begun: dict[str, dict[str, str]] = {}
        #: The token requests of the service.
        self.forms: list[dict[str, str]] = []
        self.paths: list[str] = []
        #: Responses of the token introspection, in Google's form.
        self.access: dict[str, dict[str, str]] = {}
        #: Response of the userinfo endpoint. None: ID tokens contain all claims.
        self.userinfo: dict[str, Any] | None = None

    def settings(self, **fields: Any) -> Issuer:
        """Return the `[[oidc]]` table for this issuer."""
        taken, tokeninfo = (GCLOUD,), f"{self.address}/tokeninfo"
        issuer = Issuer("Corp", self.address, CLIENT, audiences=taken, tokeninfo=tokeninfo)
        return replace(issuer, **fields)

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.address,
            "authorization_endpoint": f"{self.address}/authorize",
            "token_endpoint": f"{self.address}/token",
            "jwks_uri": f"{self.address}/keys",
            "userinfo_endpoint": f"{self.address}/userinfo",
        }

    def jwks(self) -> dict[str, Any]:
        return {"keys": [key.as_dict(private=False) for key in self.keys]}

    def signs_in(self, location: str) -> str:
        """Sign a user in at the address of a redirect, and return the authorization code."""
        query = dict(parse_qsl(urlsplit(location).query))
        code = f"code-{len(self.begun)}"
        self.begun[code] = query
        return code

    def access_token(self, now: float, **changes: str) -> str:
        """Return a token of gcloud's user. The issuer answers like Google."""
        token, end = f"ya29.a0-{len(self.access)}", int(now) + 3599
        claims = {"azp": GCLOUD, "aud": GCLOUD, "sub": "7", "scope": "openid email"}
        claims |= {"exp": str(end), "expires_in": "3599", "access_type": "offline"}
        claims |= {"email": "ana@corp.example", "email_verified": "true"}
        self.access[token] = claims | changes
        return token

    def id_token(self, *, now: float | None = None, key: RSAKey | None = None, **claims: Any) -> str:
        signer = key or self.keys[-1]
        at = int(time.time() if now is None else now)
        content = {"iss": self.address, "aud": CLIENT, "sub": "7", "iat": at, "exp": at + 600}
        header = {"alg": "RS256", "kid": signer.kid}
        return jwt.encode(header, {**content, **self.claims, **claims}, signer)


@cache
def _kept_key(number: int) -> RSAKey:
    del number
    return new_key("1")


def new_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


@contextmanager
def issuing(now: Any = time.time) -> Generator[ScriptedIssuer]:
    """Serve an issuer over HTTP. `now`: its clock, in seconds."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.paths.append(self.path)
            match urlsplit(self.path).path:
                case "/.well-known/openid-configuration":
                    self._answer(200, issuer.metadata())
                case "/keys":
                    # Kubernetes does the same, with keys of another type.
                    is_refused = self.headers.get("accept") == "application/json"
                    self._answer(406 if is_refused else 200, issuer.jwks())
                case "/userinfo":
                    is_known = self.headers["authorization"] == "Bearer x"
                    self._answer(200 if is_known else 401, issuer.userinfo or {})
                case "/tokeninfo":
                    known = issuer.access.get(self.path.rpartition("access_token=")[2])
                    self._answer(200 if known else 400, known or {"error": "invalid_token"})
                case "/authorize":
                    code = issuer.signs_in(self.path)
                    begun = issuer.begun[code]
                    self.send_response(302)
                    back = f"{begun['redirect_uri']}?code={code}&state={begun['state']}"
                    self.send_header("location", back)
                    self.end_headers()
                case _:
                    self._answer(404, {})

        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            form = dict(parse_qsl(self.rfile.read(size).decode()))
            issuer.forms.append(form)
            if form["grant_type"] == "refresh_token":
                token = issuer.access_token(now())
                self._answer(200, {"access_token": token, "expires_in": 3599})
                return
            begun = issuer.begun.pop(form["code"], None)
            if begun is None or begun["redirect_uri"] != form["redirect_uri"]:
                self._answer(400, {"error": "invalid_grant"})
                return
            token = issuer.id_token(now=now(), nonce=begun["nonce"])
            self._answer(200, {"id_token": token, "access_token": "x", "token_type": "Bearer"})

        def _answer(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the signature of the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer = ScriptedIssuer(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()
