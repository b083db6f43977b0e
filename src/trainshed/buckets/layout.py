"""Where an object lies in its bucket's visible directory tree, and back. Pure.

The tree is plain: object ``a/b`` is the file ``a/b``, so that ``/gcs/BUCKET`` can be a bind mount.
Only what a file system cannot say is escaped, always with a name that begins with ``MARK``:

* ``.gs~=SEGMENT``  a segment that is empty, ``.``, ``..`` or itself begins with the mark;
* ``.gs~+CHUNK/…/.gs~=REST``  a segment of more than 255 bytes, cut into directories;
* ``.gs~file/LEAF``  object ``a`` where ``a`` is a directory already (because ``a/b`` exists).

The mapping is one-to-one on valid object names; a marked name that the mapping would not produce
is not an object (``tree`` ignores it).
"""

from __future__ import annotations

from dataclasses import dataclass

MARK = ".gs~"
SHADOW_DIR = MARK + "file"
ESCAPED = MARK + "="
CHUNK = MARK + "+"
_MAX_COMPONENT_BYTES = 255
_CHUNK_BYTES = 240


@dataclass(frozen=True, slots=True)
class Place:
    """A physical place below a bucket: directories from the top, then the file's own name."""

    dirs: tuple[str, ...]
    leaf: str


def place_of(name: str) -> Place:
    """The place of a valid object name (its shadow place is ``dirs + SHADOW_DIR``, same leaf)."""
    components: list[str] = []
    for segment in name.split("/"):
        components.extend(encode_segment(segment))
    return Place(tuple(components[:-1]), components[-1])


def encode_segment(segment: str) -> tuple[str, ...]:
    """One segment of an object name as one or, when it is too long, several path components."""
    special = segment in {"", ".", ".."} or segment.startswith(MARK)
    size = len(segment.encode())
    if not special and size <= _MAX_COMPONENT_BYTES:
        return (segment,)
    if size <= _CHUNK_BYTES:
        return (ESCAPED + segment,)
    chunks: list[str] = []
    rest = segment.encode()
    while len(rest) > _CHUNK_BYTES:
        cut = _CHUNK_BYTES
        while rest[cut] & 0xC0 == 0x80:  # never inside a UTF-8 character
            cut -= 1
        chunks.append(CHUNK + rest[:cut].decode())
        rest = rest[cut:]
    return (*chunks, ESCAPED + rest.decode())


def decode_component(component: str) -> tuple[str, bool] | None:
    """(text, complete) of one path component; None if the mapping never produces it.

    ``complete`` is False for a chunk, whose text continues in the components below it. The caller
    compares the joined segment with ``encode_segment``, which settles what is canonical.
    """
    if component.startswith(ESCAPED):
        return component[len(ESCAPED) :], True
    if component.startswith(CHUNK):
        return component[len(CHUNK) :], False
    if component.startswith(MARK):
        return None
    return component, True
