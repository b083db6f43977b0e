"""The part of the Ray benchmark that runs in Ray's own environment. It starts one head, reads commands from
stdin, and writes results as JSON to stdout.

bench/peers/ray.py runs it as a script, in a network namespace that has only a loopback interface. Commands:
`restart`, `tasks N`, `jobs N`. The head stops at the end of the input.
"""

import contextlib
import fcntl
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CALLERS = 6
ADDRESS = "127.0.0.1"
CPUS = os.cpu_count() or 1
SET_FLAGS = 0x8914
"""The constant SIOCSIFFLAGS of Linux. The value 0x41 below is IFF_UP | IFF_RUNNING."""


class Phoenix:
    """An actor that kills its process on command. A call that succeeds afterwards is the first statement of a
    new incarnation."""

    def __init__(self) -> None:
        self._first = time.time_ns()

    def life(self) -> tuple[int, int]:
        """Return the start time (ns since the epoch) and the process ID."""
        return self._first, os.getpid()

    def die(self, stamp: str) -> None:
        Path(stamp).write_text(str(time.time_ns()))
        os.kill(os.getpid(), signal.SIGKILL)


def trivial(python: str) -> None:
    """A task that starts an interpreter, as a Trainshed job does."""
    subprocess.run([python, "-c", "pass"], check=True)


class Head:
    """A Ray head that lives as long as this process. `python`: the interpreter of tasks and jobs, which is
    also the floor's."""

    def __init__(self, directory: Path, python: str, jobs: bool) -> None:
        self._ray: Any = importlib.import_module("ray")
        self._directory = directory
        self._python = python
        context = self._ray.init(
            num_cpus=CPUS,
            include_dashboard=jobs,
            dashboard_host=ADDRESS,
            object_store_memory=100 << 20,
            log_to_driver=False,
            _node_ip_address=ADDRESS,
            _temp_dir=str(directory),
        )
        self._dashboard = context.dashboard_url
        self._actor: Any = None

    def restart(self) -> dict[str, Any]:
        """Return the milliseconds from the actor's exit to the first statement of its next incarnation, and
        whether the process is new."""
        if self._actor is None:
            actor = self._ray.remote(Phoenix).options(max_restarts=-1, max_task_retries=-1)
            self._actor = actor.remote()
            self._ray.get(self._actor.life.remote())
        stamp = self._directory / "exit"
        before = processes()
        with contextlib.suppress(self._ray.exceptions.RayActorError):
            self._ray.get(self._actor.die.options(max_task_retries=0).remote(str(stamp)))
        first, process = self._ray.get(self._actor.life.remote())
        return {"ms": (first - int(stamp.read_text())) / 1e6, "reused": process in before}

    def tasks(self, count: int) -> dict[str, Any]:
        """Return the number of tasks per second."""
        task = self._ray.remote(trivial)
        begun = time.perf_counter()
        self._ray.get([task.remote(self._python) for _ in range(count)])
        return {"rate": count / (time.perf_counter() - begun)}

    def jobs(self, count: int) -> dict[str, Any]:
        """Return the number of Ray jobs per second. A few callers submit jobs, and wait for the end of each
        job."""
        submission: Any = importlib.import_module("ray.job_submission")
        client = submission.JobSubmissionClient(f"http://{self._dashboard}")

        def one(_: int) -> None:
            job = client.submit_job(entrypoint=f"{self._python} -c pass")
            while not (status := client.get_job_status(job)).is_terminal():
                time.sleep(0.02)
            if status.value != "SUCCEEDED":
                raise RuntimeError(f"a Ray job ended as {status.value}")

        begun = time.perf_counter()
        with ThreadPoolExecutor(CALLERS) as pool:
            list(pool.map(one, range(count)))
        return {"rate": count / (time.perf_counter() - begun)}

    def close(self) -> None:
        self._ray.shutdown()


def processes() -> set[int]:
    return {int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()}


def raise_loopback() -> None:
    """Enable the loopback interface of the new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sH14x", b"lo", 0x41))


def main(directory: str, python: str, jobs: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray's own output must not be mixed with the results.
    raise_loopback()
    head = Head(Path(directory), python, jobs == "jobs")
    try:
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            name, *numbers = line.split()
            answer = getattr(head, name)(*map(int, numbers))
            print(json.dumps(answer), file=answers, flush=True)
    finally:
        head.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
