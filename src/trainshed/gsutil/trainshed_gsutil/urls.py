"""Parses the arguments of commands: gs:// URLs, file:// URLs and paths, `-`, and wildcards in them. Pure.

The wildcards `*` and `?` stay within one part between slashes, because only that level is listed; `**` covers
all levels.
"""

import fnmatch
import re
from typing import NamedTuple

from trainshed_gsutil.errors import InvalidUrl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Pattern

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_GENERATION = re.compile(r"(.+)#([0-9]+)", re.DOTALL)
_WILDCARD = re.compile(r"[*?\[\]]")


class Url(NamedTuple):
    """A gs:// URL or a path."""

    #: None for files; "" for `gs://` alone.
    bucket: "str | None"
    #: The object's name, "" = the bucket itself; or the file's path.
    name: str
    #: The object's generation; "" = the newest.
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
        """Whether it is `gs://`, which stands for all buckets."""
        return self.bucket == ""

    @property
    def is_bucket(self) -> bool:
        return bool(self.bucket) and not self.name

    @property
    def is_object(self) -> bool:
        return bool(self.bucket) and bool(self.name)

    @property
    def is_stream(self) -> bool:
        """Whether it is `-`: standard input or output."""
        return self.bucket is None and self.name == "-"

    @property
    def is_placeholder(self) -> bool:
        """Whether it is an object that stands for an empty directory."""
        return self.is_object and self.name.endswith(("/", "_$folder$"))


def parse(text: str) -> Url:
    """Parse an argument. Raises InvalidUrl."""
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


_FIRST = re.compile(r"[*?\[\]]")


class Step(NamedTuple):
    """One listing, and which of its names match."""

    #: The prefix to list.
    prefix: str
    #: "/" lists one level, "" all below.
    delimiter: str
    #: A name has to match one of these.
    patterns: "tuple[Pattern[str], ...]"
    #: The pattern that has to follow behind a matching level; "" = nothing.
    rest: str

    def matches(self, name: str) -> bool:
        return any(pattern.match(name) for pattern in self.patterns)


def step(wildcard: str) -> Step:
    """Returns the first listing that a name, perhaps with wildcards, needs."""
    match = _FIRST.search(wildcard)
    if match is None:
        return Step(wildcard, "/", _compiled(wildcard), "")
    prefix = wildcard[: match.start()]
    level, slash, rest = wildcard[match.start() :].partition("/")
    if "**" in level:
        return Step(prefix, "", _compiled(prefix + level + slash + rest), "")
    return Step(prefix, "/", _compiled(prefix + level), rest)


def without_slash(name: str) -> str:
    """The text without one slash at its end."""
    return name[:-1] if name.endswith("/") else name


def _compiled(pattern: str) -> "tuple[Pattern[str], ...]":
    # `a/**/b` also matches `a/b`.
    texts = [pattern, pattern.replace("/**/", "/")]
    texts += [text[3:] for text in texts if text.startswith("**/")]
    return tuple(re.compile(fnmatch.translate(text)) for text in dict.fromkeys(texts))


def split_path(path: str) -> "tuple[str, str] | None":
    """Returns (directory, pattern of names) of a path with `**`; None if it has none."""
    before, stars, behind = path.partition("**")
    if not stars:
        return None
    return before[:-1], behind.lstrip("/") or "*"
