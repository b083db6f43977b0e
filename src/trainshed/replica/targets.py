"""Whom a request to one of Google's hosts may concern: the service's APIs, a bucket that may be ours, or somebody else.
Also keeps our tokens from going to somebody else. Pure; runs on Python 3.6.
"""

import base64
import re
from urllib.parse import unquote_to_bytes

from trainshed.replica import messages

HOSTS = (b"storage.googleapis.com", b"www.googleapis.com")
JOB_TOKEN = b"tsj1."
"""What a token of a job begins with."""

_OTHER_TOKEN = re.compile(rb"[A-Za-z0-9_-]{43}\Z")
"""A token of a person; Google's have dots in them."""
_API = re.compile(
    rb"(?:(?:[a-z0-9-]+-)?(?:aiplatform|ml)|cloudresourcemanager|logging)\.googleapis\.com\Z"
)
_DISCOVERY = b"/discovery/"
_ISSUER = b"https://trainshed.local"
_OURS_ALONE = (b"with", b"computeMetadata", b"batch")
_STORAGE = re.compile(
    rb"/*(?:storage|(?:resumable/)?upload/storage|download/storage)/v1(?:/b/([^/]+)|/|\Z)"
)


def has_token(text: bytes) -> bool:
    """Whether a token of a job is part of it, encoded as in addresses or not."""
    return JOB_TOKEN in unquote_to_bytes(text)


class Request:
    """A client's request, put right. Raises NotHttp.

    `bucket`: as its path has it, b"" = it names none; `length`: of its body; `is_read`: it may be made twice; `is_api`: the
    service's APIs answer it, not the buckets.
    """

    __slots__ = (
        "bucket",
        "head",
        "host",
        "is_api",
        "is_read",
        "is_storage",
        "length",
        "method",
        "path",
    )

    def __init__(self, head: messages.Head) -> None:
        words = head.first.split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            raise messages.NotHttp("a request of another kind")
        self.head = head
        self.length = head.put_right()
        self.method = words[0]
        # Clients may say the whole address.
        self.path = re.sub(rb"^[a-zA-Z]+://[^/?]*", b"", words[1].partition(b"?")[0])
        self.host = b"".join(head.values(b"host")[:1]).lower().partition(b":")[0]
        self.is_read = self.method in (b"GET", b"HEAD") and not self.length
        # Older clients ask one host what all the APIs are like.
        is_discovery = self.host == HOSTS[1] and self.path.startswith(_DISCOVERY)
        self.is_api = is_discovery or bool(_API.match(self.host))
        storage = _STORAGE.match(self.path)
        self.is_storage = bool(storage) or self.host != HOSTS[1]
        self.bucket = (storage.group(1) or b"") if storage else self._first()

    def may_go_out(self) -> bool:
        """Whether it may concern somebody else than us at all."""
        if self.host not in HOSTS or self._first() in _OURS_ALONE:
            return False
        if not self.bucket and _STORAGE.match(self.path):
            return False
        return not has_token(self.head.first)

    def outwards(self) -> bytes:
        """Its head without any token of ours."""
        sent = messages.Head(self.head.first, [f for f in self.head.fields if JOB_TOKEN not in f])
        sent.drop(b"proxy-authorization")
        if any(map(is_ours, sent.values(b"authorization"))):
            sent.drop(b"authorization")
        return sent.encode()

    def _first(self) -> bytes:
        return self.path.lstrip(b"/").partition(b"/")[0]


def is_ours(authorization: bytes) -> bool:
    """Whether it holds a token of this service, of a job or of a person, or has the form of one."""
    said = authorization.split()[-1:]
    if JOB_TOKEN in authorization or not said:
        return True
    if _OTHER_TOKEN.match(said[0]):
        return True
    return any(JOB_TOKEN in part or _ISSUER in part for part in map(_decoded, said[0].split(b".")))


def _decoded(text: bytes) -> bytes:
    try:
        return base64.b64decode(text.rstrip(b"=") + b"=" * (-len(text.rstrip(b"=")) % 4), b"-_")
    except ValueError:
        return b""
