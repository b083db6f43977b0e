"""The rights to look at jobs in TensorBoard: links, and the cookies that browsers get for them.

A view is a set of jobs, named by their numbers: `7`, `7-12`. Its link is good as long as the jobs exist and
the owner's token is the same. The link's key stands behind the `#`, so that no server is sent it with the
page. A browser exchanges it for a cookie of that view's path alone, which no script reads and no other site
sends.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from typing import Final
from urllib.parse import urlsplit

from trainshed.core.names import JobUid

PATH: Final = "/tensorboard/"
MOST_JOBS: Final = 20
"""Most jobs of one view."""
LIFETIME: Final = 24 * 3600 * 10**9
"""Nanoseconds that a cookie is good for."""
COOKIE: Final = "trainshed_tensorboard"
_VIEW: Final = re.compile(rf"[1-9][0-9]{{0,18}}(?:-[1-9][0-9]{{0,18}}){{0,{MOST_JOBS - 1}}}")
_HOST: Final = re.compile(r"[A-Za-z0-9.*_-]+(:[0-9]{1,5})?")
"""A host that a browser's content security policy can name: no addresses in brackets."""


def view_of(jobs: Sequence[JobUid]) -> str:
    """Return the name of the view of these jobs, each named once."""
    return "-".join(str(uid) for uid in dict.fromkeys(jobs))


def jobs_of(view: str) -> tuple[JobUid, ...]:
    """Return the jobs of a view; () if no view can have this name."""
    if _VIEW.fullmatch(view) is None:
        return ()
    return tuple(JobUid(int(part)) for part in view.split("-"))


class ViewLinks:
    """Makes and checks links and cookies of views. `key`: the service's own secret, the same after a restart.
    `address`: where browsers reach the service. `now`: nanoseconds since the epoch."""

    def __init__(self, key: bytes, address: str, now: Callable[[], int]) -> None:
        self._key = key
        self._address = address.rstrip("/")
        self._now = now

    def link(self, view: str) -> str:
        return f"{self._address}{PATH}#view={view}&key={self._sign('link', view)}"

    def opens(self, view: str, key: str) -> bool:
        """Whether `key` is that of the view's link."""
        return bool(jobs_of(view)) and _same(self._sign("link", view), key)

    def cookies(self, view: str, origin: str, scheme: str) -> list[bytes]:
        """Return `Set-Cookie` values for a browser that has opened a view from a page of `origin`."""
        until = self._now() + LIFETIME
        value = f"{until}.{self._sign('cookie', f'{view} {until}')}"
        secure = "; Secure" if "https" in (scheme, urlsplit(origin).scheme) else ""
        # Behind a proxy the path may begin with the proxy's own.
        paths = dict.fromkeys((f"{PATH}{view}/", f"{urlsplit(self._address).path}{PATH}{view}/"))
        return [
            f"{COOKIE}={value}; Path={path}; Max-Age={LIFETIME // 10**9}; HttpOnly; "
            f"SameSite=Strict{secure}".encode()
            for path in paths
        ]

    def lets(self, view: str, header: str) -> bool:
        """Whether the `Cookie` header holds a cookie that is good for the view now."""
        return any(self._is_good(view, value) for value in _values(header))

    def sources(self, view: str, host: str) -> str:
        """Return the addresses below which everything of a view lies, for a content security policy."""
        own = urlsplit(self._address)
        found = [
            f"{own.netloc}{own.path}{PATH}{view}/" if _HOST.fullmatch(own.netloc) else "'self'"
        ]
        found.append(f"{host}{PATH}{view}/" if _HOST.fullmatch(host) else "'self'")
        return " ".join(dict.fromkeys(found))

    def _is_good(self, view: str, value: str) -> bool:
        until, _, signature = value.partition(".")
        if not until.isdecimal() or len(until) > 19 or int(until) <= self._now():
            return False
        return _same(self._sign("cookie", f"{view} {until}"), signature)

    def _sign(self, kind: str, text: str) -> str:
        digest = hmac.digest(self._key, f"tensorboard {kind} {text}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _values(header: str) -> list[str]:
    pairs = (part.strip().partition("=") for part in header.split(";"))
    return [value for name, _, value in pairs if name == COOKIE]


def _same(wanted: str, given: str) -> bool:
    return hmac.compare_digest(wanted.encode(), given.encode("utf-8", "surrogateescape"))
