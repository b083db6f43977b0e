"""Parses references of images. Pure."""

import re

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
_PART = re.compile(r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*")
_HOST = re.compile(r"[A-Za-z0-9.-]+(?::[0-9]+)?|\[[0-9a-fA-F:]+\](?::[0-9]+)?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def is_pinned(reference: str) -> bool:
    """Whether it names content, which never changes, rather than a tag."""
    return bool(_DIGEST.search(reference))


def tag_of(reference: str) -> str:
    """Return its tag, `latest` if it has none; "" if it is pinned by a digest."""
    if is_pinned(reference):
        return ""
    return reference.rpartition("/")[2].partition(":")[2] or "latest"


def names_registry(reference: str) -> bool:
    """Whether it says which registry it comes from."""
    host, slash, _ = reference.partition("/")
    return bool(slash) and ("." in host or ":" in host)


def host_of(reference: str) -> str:
    """Return the registry that it names; "docker.io" if it names none."""
    return reference.partition("/")[0] if names_registry(reference) else "docker.io"


def is_local(reference: str) -> bool:
    """Whether it can exist only on this machine: podman names images so that were built or imported without a
    registry in their name."""
    return reference.startswith("localhost/")


def fault_of(reference: str) -> str:
    """Return why it is no image reference, as a whole sentence; "" if it is one."""
    name = _DIGEST.sub("", reference)
    if "@" in name:
        return f"{reference!r} has a digest that is not sha256 and 64 hexadecimal digits."
    head, _, last = name.rpartition("/")
    last, colon, tag = last.partition(":")
    if colon and not _TAG.fullmatch(tag):
        return (
            f"{reference!r} has the tag {tag!r}, which has other characters than letters, digits, '_', "
            "'.', '-'."
        )
    parts = [*head.split("/"), last] if head else [last]
    first = parts[0]
    if len(parts) > 1 and ("." in first or ":" in first or first == "localhost"):
        if not _HOST.fullmatch(first):
            return f"{reference!r} begins with {first!r}, which is no host."
        parts = parts[1:]
    wrong = next((part for part in parts if not _PART.fullmatch(part)), None)
    if wrong is None:
        return ""
    return (
        f"{reference!r} is not an image name: its part {wrong!r} has other characters than small "
        "letters, digits and "
        "single separators between them."
    )
