"""The program of all replicas in a chaos run. It writes numbered lines at its own pace and ends as planned.

The text of this file is passed to `python3 -c`. It runs in the replica's sandbox with only the standard
library. The test compares the service's reports with a diary that the service cannot change:

    DIARY/workerpool0-0/begun-000-TOKEN     one file per incarnation, created with O_EXCL
    DIARY/workerpool0-0/said-000            number of lines certainly written to standard output
    DIARY/workerpool0-0/ended-000           its own exit and the time (ns), written just before it; absent if
                                            the program was killed from outside
    DIARY/workerpool0-0/alive               locked while the program runs
    DIARY/workerpool0-0/two-TOKEN           an incarnation started while another one was running
"""

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import sys
import time
import uuid
from pathlib import Path


def visible_path(path: str) -> str:
    """Return the path of a bucket file for this program: below /gcs, or the file's real path without
    namespaces.
    """
    data, _, name = path.partition("/buckets/")
    return path if Path(data, "buckets").is_dir() else f"/gcs/{name}"


def main() -> None:
    diary, door = Path(visible_path(sys.argv[1])), visible_path(sys.argv[2])
    pool, lives = sys.argv[3], json.loads(sys.argv[4])
    replica = f"workerpool{pool}-{json.loads(os.environ['CLUSTER_SPEC'])['task']['index']}"
    # A later incarnation may run as another user.
    os.umask(0)
    home = diary / replica
    home.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex[:12]
    alive = os.open(home / "alive", os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        (home / f"two-{token}").touch()
    number = sum(path.name.startswith("begun-") for path in home.iterdir())
    (home / f"begun-{number:03}-{token}").touch(exist_ok=False)
    log = os.open(home / f"said-{number:03}", os.O_CREAT | os.O_WRONLY, 0o666)
    life = lives[min(number, len(lives) - 1)]
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stops: list[int] = []
    if life["term"] == "ignores":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif life["term"] == "checkpoints":
        signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def tell(word: str) -> None:
        with contextlib.suppress(OSError):  # The listening run may have ended.
            ears.sendto(json.dumps([diary.name, replica, number, word]).encode(), door)

    def end(how: str) -> None:
        new = home / f"ended-{number:03}.new"
        new.write_text(json.dumps([how, time.time_ns()]), encoding="utf-8")
        new.rename(new.with_suffix(""))

    count = 0
    while True:
        lines = [
            f"{token} {n} {replica} life {number} pid {os.getpid()}"
            for n in range(count, count + life["burst"])
        ]
        view = memoryview(("\n".join(lines) + "\n").encode())
        while view:
            view = view[os.write(1, view) :]
        count += life["burst"]
        os.pwrite(log, b"%012d" % count, 0)
        if stops:
            end("checkpoints")
            os._exit(0)
        if count >= life["lines"] > count - life["burst"]:
            tell("reached")
        # Write until it is killed from outside.
        if count >= life["lines"] and life["ends"]:
            waits_for = life["waits_for"]
            if not waits_for or (diary / waits_for / "done").exists():
                break
        time.sleep(life["pause"])
    how = life["end"]
    tell("ends")
    end(how)
    if how == "exits with 0":
        (home / "done").touch()
    if how == "aborts":
        os.abort()
    if how == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    os._exit(int(how.rpartition(" ")[2]))


main()
