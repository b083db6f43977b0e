"""The file of `cp -L`: a line of CSV for each source, by which a broken copy is taken up again."""

import csv
import os
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_COLUMNS = [
    "Source",
    "Destination",
    "Start",
    "End",
    "Md5",
    "UploadId",
    "Source Size",
    "Bytes Transferred",
    "Result",
    "Description",
]


class Manifest:
    """`path`: "" = nobody wants one."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._done: "set[str]" = set()
        if not path:
            return
        if os.path.exists(path):
            with open(path, newline="") as file:
                rows = csv.DictReader(file)
                self._done = {row["Source"] for row in rows if row["Result"] in ("OK", "skip")}
        else:
            self._append(_COLUMNS)

    def has(self, source: str) -> bool:
        """Whether it was copied by an earlier command."""
        return source in self._done

    def add(
        self,
        source: str,
        target: str,
        started: float,
        result: str,
        *,
        size: int = 0,
        md5: str = "",
        description: str = "",
    ) -> None:
        """`result`: OK, skip or error. `started`: seconds since the epoch."""
        if not self._path:
            return
        moved = size if result == "OK" else 0
        said = " ".join(description.split())
        times = [_stamp(started), _stamp(time.time())]
        self._append([source, target, *times, md5, "", size, moved, result, said])

    def _append(self, row: "list[Any]") -> None:
        with self._lock, open(self._path, "a", newline="") as file:
            csv.writer(file).writerow(row)


def _stamp(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return "%s.%06dZ" % (whole, seconds % 1 * 1e6)
