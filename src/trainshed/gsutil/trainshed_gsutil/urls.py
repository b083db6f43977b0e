"""What a command is given: gs:// URLs, file:// URLs and paths, and `-`. Pure."""

import re
from typing import NamedTuple

from trainshed_gsutil.errors import InvalidUrl

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_GENERATION = re.compile(r"(.+)#([0-9]+)", re.DOTALL)
_WILDCARD = re.compile(r"[*?\[\]]")


class Url(NamedTuple):
    """`bucket`: None for files; "" for `gs://` alone. `name`: of the object, "" = the bucket itself; a file's
    path. `generation`: "" = the newest."""

    bucket: "str | None"
    name: str
    generation: str = ""

    def __str__(self) -> str:
        if self.bucket is None:
            return "file://" + self.name
        behind = "#" + self.generation if self.generation else ""
        if not self.bucket:
            return "gs://"
        return "gs://%s/%s%s" % (self.bucket, self.name, behind)

    @property
    def is_cloud(self) -> bool:
        return self.bucket is not None

    @property
    def is_provider(self) -> bool:
        """`gs://`: all buckets."""
        return self.bucket == ""

    @property
    def is_bucket(self) -> bool:
        return bool(self.bucket) and not self.name

    @property
    def is_object(self) -> bool:
        return bool(self.bucket) and bool(self.name)

    @property
    def is_stream(self) -> bool:
        """Standard input or output."""
        return self.bucket is None and self.name == "-"

    @property
    def is_placeholder(self) -> bool:
        """An object that stands for an empty directory."""
        return self.is_object and self.name.endswith(("/", "_$folder$"))


def parse(text: str) -> Url:
    """Raises InvalidUrl."""
    match = _SCHEME.match(text)
    if match is None:
        return Url(None, text)
    scheme, rest = match.group(1).lower(), match.group(2)
    if scheme == "file":
        return Url(None, rest)
    if scheme != "gs":
        raise InvalidUrl('Unrecognized scheme "%s".' % scheme)
    bucket, slash, name = rest.partition("/")
    if slash and not bucket:
        raise InvalidUrl("Invalid bucket name in URL %r" % text)
    versioned = _GENERATION.fullmatch(name)
    if versioned is not None:
        return Url(bucket, versioned.group(1), versioned.group(2))
    return Url(bucket, name)


def has_wildcard(text: str) -> bool:
    return _WILDCARD.search(text) is not None
