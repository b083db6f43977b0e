"""The rights to look at jobs in TensorBoard: links, and the marks that browsers get for them.

A view is a set of jobs, named by their numbers: `7`, `7-12`. Its link is good as long as the jobs exist and
the owner's token is the same. The link's key stands behind the `#`, so that no server is sent it with the
page. A browser exchanges it for a mark, a secret part of the view's path: unlike a cookie, it is sent to this
host and port alone.
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
"""Nanoseconds that a mark is good for."""
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
    """Makes and checks links and marks of views. `key`: the service's own secret, the same after a restart.
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

    def mark(self, view: str) -> str:
        """Return the part of the path by which a browser that has opened the view may look, for a day."""
        until = str(self._now() + LIFETIME)
        return f"{until}.{self._sign('mark', f'{view} {until}')}"

    def lets(self, view: str, mark: str) -> bool:
        """Whether the mark is good for the view now."""
        until, _, signature = mark.partition(".")
        if not until.isdecimal() or len(until) > 19 or int(until) <= self._now():
            return False
        return _same(self._sign("mark", f"{view} {until}"), signature)

    def sources(self, path: str, host: str) -> str:
        """Return the addresses below which everything of a view lies, for a content security policy. `path`:
        of the view, with its mark."""
        own = urlsplit(self._address)
        sources = [f"{own.netloc}{own.path}{path}" if _HOST.fullmatch(own.netloc) else "'self'"]
        sources.append(f"{host}{path}" if _HOST.fullmatch(host) else "'self'")
        return " ".join(dict.fromkeys(sources))

    def _sign(self, kind: str, text: str) -> str:
        digest = hmac.digest(self._key, f"tensorboard {kind} {text}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _same(wanted: str, sent: str) -> bool:
    return hmac.compare_digest(wanted.encode(), sent.encode("utf-8", "surrogateescape"))
