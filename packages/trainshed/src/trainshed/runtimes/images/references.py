"""Parses references of images. Pure."""

import re

_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def is_pinned(reference: str) -> bool:
    return bool(_DIGEST.search(reference))


def tag_of(reference: str) -> str:
    """Return the tag of a reference: `latest` if it has none, "" if it has a digest instead."""
    if is_pinned(reference):
        return ""
    return reference.rpartition("/")[2].partition(":")[2] or "latest"


def names_registry(reference: str) -> bool:
    host, slash, _ = reference.partition("/")
    return bool(slash) and ("." in host or ":" in host)


def host_of(reference: str) -> str:
    """Return the registry of a reference, or "docker.io" if it contains none."""
    return reference.partition("/")[0] if names_registry(reference) else "docker.io"


def is_local(reference: str) -> bool:
    """Whether the image can exist only on this machine. If an image was built or imported without a registry
    in its name, podman gives it such a name."""
    return reference.startswith("localhost/")
