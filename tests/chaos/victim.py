"""The service that is started, killed and restarted, and calls with retries.

One thread starts and kills (`Victim`). Any number of other threads call, and wait while the service is down.
"""

import contextlib
import http.client
import json
import os
import select
import signal
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.processes import children, command_line
from tests.e2e.running import Service, command, environment, launch

START: Final = 60.0
"""Seconds within which a service must be ready."""
_MARKS: Final = {"zygote": "zygote", "advisor": "studies.advisor_process", "buckets": "trainshed.buckets"}
"""Markers in the command lines of a service's children."""
CALL_TIMEOUT: Final = 300.0
"""Total seconds for which a caller retries."""
_AFTER: Final = 5 * 10**9
"""Nanoseconds after a `Span` in which a process may still end because of it: grace period and restart of the
service.
"""


@dataclass(frozen=True, slots=True)
class Span:
    """A period (ns) in which a node was drained, the disk full, or a zygote hung."""

    began: int
    end: int


def overlaps(spans: Iterable[Span], began: int, ended: int) -> bool:
    """Return whether a span may have affected a period from `began` to `ended`."""
    return any(span.began <= ended and began <= span.end + _AFTER for span in spans)


class Unreachable(Exception):
    """Raised if the service did not respond within a caller's retry time."""


class RequestRejected(Exception):
    """The service responded with an error. `status`: HTTP status. `tries`: number of requests."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status
        self.tries = 1


class Victim:
    """The service on `data`. `faults`: errors of the service: it exited, or did not become ready."""

    def __init__(self, data: Path, *args: str) -> None:
        self.data = data
        self.faults: list[str] = []
        self.starts = 0
        self.hangs: list[Span] = []
        #: Set before each request and after each external kill: a good time for further kills.
        self.stirred = threading.Event()
        self._args = args
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = -1
        self._began = 0.0
        self._service: Service | None = None
        self._changed = threading.Condition()
        self.closed = False
        self._stopped: list[int] = []

    def start(self) -> None:
        """Start the service in a thread, unless it runs."""
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self.faults.append(f"start {self.starts} exited with status {status}")
            self._forget()
        self.data.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        self._began = time.monotonic()
        log = self.data.parent / "service.log"
        with log.open("a") as file:
            file.write(f"--- start {self.starts}\n")
        argv = command("up", "--port", "0", "--data", str(self.data), *self._args)
        self._process, self._ready = launch(argv, log, env=environment(self.data), stdin=subprocess.DEVNULL)

    def wait(self) -> bool:
        """Wait until the service is ready. Return False if it exited or took too long."""
        if self._service is not None:
            return True
        printed = b""
        until = self._began + START
        while not printed.endswith(b"\n"):
            # A later caller sees the messages printed in time.
            left = max(0.0, until - time.monotonic())
            if not select.select([self._ready], [], [], left)[0]:
                self.faults.append(f"start {self.starts} did not serve within {START:g} s")
                return False
            if not (more := os.read(self._ready, 65536)):
                return False  # It exited; the next start reports it.
            printed += more
        facts = json.loads(printed)
        assert self._process is not None
        with self._changed:
            self._service = Service(
                self.data, self._process, facts["rest"], facts["token"], facts["pid"], facts
            )
            self._changed.notify_all()
        return True

    def kill(self) -> None:
        """Send SIGKILL to the service."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def kill_children(self, which: str) -> int:
        """Send SIGKILL to its children of a kind; return their number. `which`: "zygote", "advisor",
        "buckets".
        """
        pids = self._children(which)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)

    def stop_zygote(self) -> bool:
        """Send SIGSTOP and never continue: the service must detect it. Return False without a zygote. `clear`
        ends the stopped process after the service has exited.
        """
        for pid in self._children("zygote"):
            self._stopped.append(os.pidfd_open(pid))
            os.kill(pid, signal.SIGSTOP)
            return True
        return False

    @property
    def waits_for_zygote(self) -> bool:
        """Return whether the last stopped process still exists."""
        return bool(self._stopped) and not select.select([self._stopped[-1]], [], [], 0)[0]

    def _children(self, which: str) -> list[int]:
        pids = children(self.pid) if self.pid else ()
        return [pid for pid in pids if _MARKS[which] in command_line(pid)]

    def end(self, *, with_jobs: bool = False) -> None:
        """Stop the service like an operator; with its jobs even if it does not run now."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()
        if with_jobs:
            self.start()
            self.wait()
        if self._process is None:
            return
        if with_jobs:
            subprocess.run(
                command("down", "--data", str(self.data)),
                env=environment(self.data),
                stdout=subprocess.DEVNULL,
                timeout=120,
                check=False,
            )
        self._terminate()

    def stop(self) -> bool:
        """Stop the service with SIGTERM for a restart. Return False if it is not ready now."""
        if self._process is None or self._service is None:
            return False
        self._terminate()
        return True

    def _terminate(self) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            status = self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.faults.append("it did not end within 60 s of SIGTERM")
            self._process.kill()
            status = self._process.wait()
        if status != 0:
            self.faults.append(f"it ended with status {status} after SIGTERM")
        self._forget()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def service(self) -> Service:
        """Wait until the service is ready, and return its address. Raises Unreachable."""
        until = time.monotonic() + CALL_TIMEOUT
        with self._changed:
            while self._service is None:
                if self.closed or not self._changed.wait(max(0.0, until - time.monotonic())):
                    raise Unreachable("the service did not come back")
            return self._service

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        """Send one request. Raises RequestRejected, and OSError or HTTPException without a response."""
        service = self.service()
        self.stirred.set()
        return request(service, verb, path, body)

    def call_with_retries(self, verb: str, path: str, body: Any = None) -> tuple[Any, int]:
        """Send a repeatable request until it has a response. Return it and the number of requests. Raises
        RequestRejected, Unreachable.
        """
        until = time.monotonic() + CALL_TIMEOUT
        tries = 0
        while time.monotonic() < until:
            tries += 1
            try:
                return self.call(verb, path, body), tries
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)  # It may be dying: the killer has not reported it yet.
            except RequestRejected as refused:
                refused.tries = tries
                if refused.status != 503:
                    raise
                time.sleep(0.05)
        raise Unreachable(f"{verb} {path} was not answered")

    def create(self, path: str, body: Mapping[str, Any]) -> str:
        """Create a job exactly once, with retries, and return its path. Raises RequestRejected, Unreachable.

        The client chooses the ID of an `ml` job: a repeated request gets 409 if an earlier one was accepted.
        For other jobs, list the jobs before repeating.
        """
        public = f"{path}/{body['jobId']}" if "jobId" in body else ""
        is_repeated = False
        while True:
            try:
                if is_repeated and not public:
                    query = urllib.parse.quote(f'display_name="{body["displayName"]}"')
                    listed = self.call("GET", f"{path}?filter={query}")
                    for job in listed.get(path.rpartition("/")[2], ()):
                        return f"/v1/{job['name']}"
                made = self.call("POST", path, body)
                return public or f"/v1/{made['name']}"
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
            except RequestRejected as refused:
                if refused.status == 409 and public and is_repeated:
                    return public
                if refused.status != 503:
                    raise
                time.sleep(0.05)
            is_repeated = True

    def _forget(self) -> None:
        self._process = None
        for handle in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        self._stopped.clear()
        if self._ready >= 0:
            os.close(self._ready)
            self._ready = -1
        with self._changed:
            self._service = None


def request(service: Service, verb: str, path: str, body: Any = None) -> Any:
    """Send a JSON request. Raises RequestRejected; OSError and HTTPException without a complete response."""
    answer = service.ask(verb, path, body)
    if answer.status >= 400:
        raise RequestRejected(answer.status, answer.body.decode(errors="replace"))
    return answer.json if answer.body else None
