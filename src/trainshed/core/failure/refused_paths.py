"""Advice about a program that failed because a path was denied to it. Pure: takes the log's last lines.

On Vertex a program is root in a container of its own, and may make `/workspace`. Here a prebuilt image is the
machine's own files, all of which the program may read and none of which it may change.
"""

import re
from typing import Final

from trainshed.core.job.spec import Program
from trainshed.core.launch import OWN_ROOT_LABEL
from trainshed.core.runtime import CONTAINER

_REFUSED: Final = re.compile(
    r"(?:\[Errno (?:13|30)\] (?:Permission denied|Read-only file system): '(/[^'\n]+)'"
    r"|\bcannot (?:create|touch)(?: (?:directory|regular file))? ['\u2018]?(/[^'\u2019\n:]+)['\u2019]?: "
    r"(?:Permission denied|Read-only file system))"
)
"""Matches a Python traceback, and what shells, mkdir, cp and touch print."""
_WRITABLE: Final = ("/tmp/", "/var/tmp/", "/dev/", "/gcs/")
"""Programs may write below these: something else was wrong."""
_MACHINES: Final = (
    "/bin/",
    "/boot/",
    "/etc/",
    "/home/",
    "/lib/",
    "/lib32/",
    "/lib64/",
    "/proc/",
    "/root/",
    "/run/",
    "/sbin/",
    "/sys/",
    "/usr/",
    "/var/",
)
"""These are the machine's in any case, even if the job has a root directory of its own."""


def refused_path(tail: str) -> str:
    """Return the path whose refusal the last of these lines reports; "" if it reports something else."""
    found = [first or second for first, second in _REFUSED.findall(tail)]
    if not found or found[-1] not in tail.rstrip().splitlines()[-1]:
        return ""  # Many programs try one place after the other, and go on.
    return "" if found[-1].startswith(_WRITABLE) else found[-1]


def advice_on_path(path: str, program: Program) -> str:
    """Return what the user can do about the path, in a sentence or two; "" for an image of one's own, whose
    files its program may change."""
    if program.runtime.family == CONTAINER:
        return ""
    label = ""
    if not f"{path}/".startswith(_MACHINES):
        label = (
            f"With the job's label {OWN_ROOT_LABEL}=on it can make directories of its own in / (not at "
            "isolation level session). "
        )
    return (
        f"A program in a prebuilt image cannot write {path} here, as it could in a container of its own: it "
        "writes in its working directory, its home, /tmp, /var/tmp and /dev/shm, and in buckets below /gcs. "
        f"{label}Name one of these, or run an image of your own, all of whose files its program may change."
    )
