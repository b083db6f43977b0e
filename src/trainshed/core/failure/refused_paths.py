"""What to do about a program that died of a path which it may not have. Pure: the log's last lines in, advice
out.

On Vertex a program is root of a container of its own, and makes `/workspace` if it likes. A prebuilt image is
the machine's own files here, all of which it may read and none of which it may change.
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
"""Of a traceback of Python's, and of what shells, mkdir, cp and touch say."""
_WRITABLE: Final = ("/tmp/", "/var/tmp/", "/dev/", "/gcs/")
"""There it is something else that is in the way."""
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
"""The machine's in any case, also with a root directory of its own."""


def refused_path(tail: str) -> str:
    """The path that was refused by what these lines end in, "" if it was something else."""
    found = [first or second for first, second in _REFUSED.findall(tail)]
    if not found or found[-1] not in tail.rstrip().splitlines()[-1]:
        return ""  # Many programs try one place after the other, and go on.
    return "" if found[-1].startswith(_WRITABLE) else found[-1]


def advice_on_path(path: str, program: Program) -> str:
    """What the user can do about it: a sentence or two; "" for an image of one's own, whose files its program
    may change."""
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
