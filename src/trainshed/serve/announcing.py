"""Says where a service is: to people, to a ready file or descriptor, and to the command line's look-up."""

import contextlib
import ipaddress
import json
import os
import tempfile
from pathlib import Path
from typing import Any

SERVICE_FILE = "service.json"
"""In the data directory, mode 0600: how `trainshed` commands find the service and its owner's token."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def write_private(path: Path, document: dict[str, Any]) -> None:
    """Replace a JSON file at once, readable by its owner alone; a reader sees the old or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(document, file)
            file.write("\n")
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def write_line(descriptor: int, document: dict[str, Any]) -> None:
    """One JSON line into a descriptor that a parent process gave, which is then closed."""
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(document) + "\n")
