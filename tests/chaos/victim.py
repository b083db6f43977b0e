"""The service that is killed: started, killed and started again; and calls that outlive it.

One thread starts and kills (`Victim`); any number of others call, and wait while there is nobody to answer.
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
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.e2e.processes import children, command_line
from tests.e2e.running import command, environment

START: Final = 60.0
"""Seconds within which a service must serve."""
_MARKS: Final = {
    "zygote": "zygote",
    "advisor": "studies.advisor_process",
    "buckets": "trainshed.buckets",
}
"""What is in the command lines of a service's children."""
PATIENCE: Final = 300.0
"""Seconds that a caller tries in all."""


class Unreachable(Exception):
    """Nobody answered in all the time that a caller has."""


class Refused(Exception):
    """The service answered with an error. `status`: of HTTP. `tries`: requests sent until then."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status} {text}")
        self.status = status
        self.tries = 1


@dataclass(frozen=True, slots=True)
class Address:
    """Where the service can be reached, and which start of it that is."""

    rest: str
    token: str
    start: int


class Victim:
    """The service on `data`. `faults`: what it did that it should not: ended by itself, did not come up."""

    def __init__(self, data: Path, *args: str) -> None:
        self.data = data
        self.faults: list[str] = []
        self.starts = 0
        #: Seconds from a start, by its number, to the first request that could be served.
        self.recoveries: dict[int, float] = {}
        self._args = args
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = -1
        self._began = 0.0
        self._address: Address | None = None
        self._changed = threading.Condition()
        self.closed = False
        self._stopped: list[int] = []

    def start(self) -> None:
        """Start it, unless it runs; returns at once."""
        if self._process is not None:
            status = self._process.poll()
            if status is None:
                return
            self.faults.append(f"start {self.starts} ended by itself with status {status}")
            self._forget()
        ready, writer = os.pipe()
        self.data.mkdir(parents=True, exist_ok=True)
        self.starts += 1
        self._began = time.monotonic()
        with (self.data.parent / "service.log").open("ab") as log:
            log.write(f"--- start {self.starts}\n".encode())
            log.flush()
            self._process = subprocess.Popen(
                [
                    *command("up", "--port", "0", "--data", str(self.data)),
                    *("--ready-fd", str(writer), *self._args),
                ],
                env=environment(self.data),
                pass_fds=(writer,),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        os.close(writer)
        self._ready = ready

    def wait(self) -> bool:
        """Wait until it serves; False if it ended or took too long."""
        if self._address is not None:
            return True
        printed = b""
        until = self._began + START
        while not printed.endswith(b"\n"):
            # Whoever asks only later finds what was said in time.
            left = max(0.0, until - time.monotonic())
            if not select.select([self._ready], [], [], left)[0]:
                self.faults.append(f"start {self.starts} did not serve within {START:g} s")
                return False
            if not (more := os.read(self._ready, 65536)):
                return False  # It ended; the next start says so.
            printed += more
        self.recoveries[self.starts] = time.monotonic() - self._began
        document = json.loads(printed)
        with self._changed:
            self._address = Address(document["rest"], document["token"], self.starts)
            self._changed.notify_all()
        return True

    def kill(self) -> None:
        """SIGKILL, without warning."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def kill_children(self, which: str) -> int:
        """SIGKILL to its children of this kind; how many there were. `which`: "zygote", "advisor",
        "buckets"."""
        pids = self._children(which)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        return len(pids)

    def stop_zygote(self) -> bool:
        """SIGSTOP, for good: the service has to notice. False: it has none now. What is left of it is ended
        when the service itself is gone, as nobody else could."""
        for pid in self._children("zygote"):
            self._stopped.append(os.pidfd_open(pid))
            os.kill(pid, signal.SIGSTOP)
            return True
        return False

    @property
    def waits_for_zygote(self) -> bool:
        """Whether the one that was stopped last is still there."""
        return bool(self._stopped) and not select.select([self._stopped[-1]], [], [], 0)[0]

    def _children(self, which: str) -> list[int]:
        pids: list[int] = []
        for pid in children(self._process.pid) if self._process is not None else ():
            try:
                command = command_line(pid)
            except OSError:
                continue
            if _MARKS[which] in command:
                pids.append(pid)
        return pids

    def end(self, *, with_jobs: bool = False) -> None:
        """End it as an operator would; with its jobs even if it does not run now."""
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
        """End it by SIGTERM, to be started again; False if it does not serve now."""
        if self._process is None or self._address is None:
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

    def address(self, newer_than: int = 0, patience: float = PATIENCE) -> Address:
        """Where it can be reached, as soon as that is a later start than the one given. Raises
        Unreachable."""
        until = time.monotonic() + patience
        with self._changed:
            while self._address is None or self._address.start <= newer_than:
                if self.closed or not self._changed.wait(max(0.0, until - time.monotonic())):
                    raise Unreachable("the service did not come back")
            return self._address

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        """One request and its answer. Raises Refused, and OSError or HTTPException if there was no answer."""
        return request(self.address(), verb, path, body)

    def insist(self, verb: str, path: str, body: Any = None) -> tuple[Any, int]:
        """The answer to a request that may be repeated, and how often it was sent. Raises Refused,
        Unreachable."""
        start = 0
        until = time.monotonic() + PATIENCE
        tries = 0
        while time.monotonic() < until:
            address = self.address(start)
            tries += 1
            try:
                return request(address, verb, path, body), tries
            except (OSError, http.client.HTTPException):
                start = self._lost(address)
            except Refused as refused:
                refused.tries = tries
                if refused.status != 503:
                    raise
                time.sleep(0.05)
        raise Unreachable(f"{verb} {path} was not answered")

    def _lost(self, address: Address) -> int:
        """The start to leave behind, after a request of `address` got no answer: that one if it is over."""
        with self._changed:
            current = self._address
        if current == address:
            time.sleep(0.02)  # It may be dying: the killer has not said so yet.
            return 0
        return address.start

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
            self._address = None


def request(address: Address, verb: str, path: str, body: Any = None) -> Any:
    """One JSON request. Raises Refused; OSError and HTTPException if there was no whole answer."""
    sent = urllib.request.Request(
        address.rest + path,
        method=verb,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {address.token}", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(sent, timeout=60) as response:
            text = response.read()
    except urllib.error.HTTPError as failure:
        raise Refused(failure.code, failure.read().decode(errors="replace")) from None
    return json.loads(text) if text else None


def json_lines(
    address: Address, path: str, timeout: float = 60
) -> Iterator[Mapping[str, Any] | None]:
    """The lines of an NDJSON answer as they come; None for each sign of life between them. Raises OSError,
    HTTPException.

    `timeout`: seconds without a sign of life.
    """
    sent = urllib.request.Request(
        address.rest + path, headers={"Authorization": f"Bearer {address.token}"}
    )
    with urllib.request.urlopen(sent, timeout=timeout) as response:
        for line in response:
            if not line.endswith(b"\n"):
                # Whoever wrote it was killed in the middle of it.
                raise http.client.IncompleteRead(line)
            yield json.loads(line) if line.strip() else None
