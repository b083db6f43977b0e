"""Actions on jobs in a chaos run: submit once, cancel, drill, and kill processes from outside."""

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.expected import Cancel
from tests.chaos.plans import CancelAt, End, JobPlan, Pool
from tests.chaos.submissions import submission
from tests.chaos.victim import RequestRejected, Unreachable, Victim
from tests.e2e.running import CUSTOM_JOBS, PROJECT

ML_JOBS: Final = f"/v1/projects/{PROJECT}/jobs"
_PUBLISH_TIMEOUT: Final = 2.0
"""Seconds within which a restarted service shows requests accepted before the restart."""
_PARENT_TITLES: Final = {End.SHIM_KILLED: "(ts-shim", End.SHIM_HANGS: "(ts-shim"}
_CREDENTIALS: Final = struct.Struct("3i")


@dataclass
class Story:
    """The history of one job and the actions on it. `public` is its path in its own API."""

    plan: JobPlan
    public: str = ""
    #: Its primary has written all lines of one incarnation.
    is_reached: bool = False
    cancel: Cancel | None = None
    #: Replica and number of the incarnation.
    kills: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    faults_found: list[str] = field(default_factory=list[str])

    @property
    def target(self) -> str:
        """The job's ID in Trainshed's own API."""
        return urllib.parse.quote(self.public.removeprefix("/v1/"), safe="")


def diary_of(directory: Path) -> Path:
    """Directory of the programs' diaries: in the default bucket, which is mounted for programs."""
    return directory / "data" / "buckets" / "trainshed" / "diary"


class JobActions:
    """Runs actions on jobs, each in its own thread. Records all actions in the run's events.jsonl."""

    def __init__(self, victim: Victim, directory: Path, plans: list[JobPlan]) -> None:
        self.stories = {plan.name: Story(plan) for plan in plans}
        #: Number of actions, by kind.
        self.done: Counter[str] = Counter()
        #: Set whenever a program is about to exit.
        self.ending = threading.Event()
        self._victim = victim
        self._diary = diary_of(directory)
        self._record = (directory / "events.jsonl").open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._hands = ThreadPoolExecutor(12, thread_name_prefix="deed")
        self._under_way: list[Future[None]] = []
        self._door = str(self._diary / "door")
        self._ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ears.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._ears.bind(self._door)
        Path(self._door).chmod(0o777)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def tell(self, what: str, **details: Any) -> None:
        """Record an action with its time."""
        with self._lock:
            self.done[what] += 1
            self._record.write(json.dumps({"at": time.time(), "what": what, **details}) + "\n")
            self._record.flush()

    def submit(self, plan: JobPlan) -> None:
        """Submit a job with retries, in a thread."""
        self._do(self._submit, self.stories[plan.name])

    def close(self) -> None:
        """Wait for active actions and close the socket. Record errors in the stories."""
        while self._under_way:
            self._under_way.pop().result()
        self._hands.shutdown()
        self._ears.close()
        self._record.close()

    def settle(self) -> None:
        """Wait until all submissions and cancels that were sent have received a response."""
        for future in list(self._under_way):
            future.result()

    def _do(self, deed: Callable[..., None], story: Story, *args: Any) -> None:
        def run_deed() -> None:
            try:
                deed(story, *args)
            except (Unreachable, RequestRejected, OSError) as failure:
                story.faults_found.append(f"{deed.__name__}: {failure}")

        self._under_way.append(self._hands.submit(run_deed))

    def _submit(self, story: Story) -> None:
        plan = story.plan
        body = submission(plan, self._arguments)
        story.public = self._victim.create(ML_JOBS if plan.is_ml else CUSTOM_JOBS, body)
        self.tell("submitted", job=plan.name, public=story.public)
        if plan.cancel is CancelAt.ONCE:
            self._cancel(story)

    def _cancel(self, story: Story) -> None:
        self._victim.service()
        sent = time.time_ns()
        try:
            _, tries = self._victim.call_with_retries("POST", f"{story.public}:cancel", {})
            story.cancel = Cancel(sent, time.time_ns(), True, tries)
        except RequestRejected as refused:
            if refused.status != 400:
                raise
            story.cancel = Cancel(sent, time.time_ns(), False, refused.tries)
        self.tell(
            "cancelled",
            job=story.plan.name,
            accepted=story.cancel.is_accepted,
            sent=sent,
            answered=story.cancel.response_time,
            tries=story.cancel.tries,
        )

    def _listen(self) -> None:
        """Receive the progress of programs, and run the actions of their plans."""
        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        while True:
            try:
                data, extra, _, _ = self._ears.recvmsg(4096, space)
            except OSError:
                return
            pid = next((_CREDENTIALS.unpack(raw)[0] for _, _, raw in extra), 0)
            name, replica, number, word = json.loads(data)
            if word == "ends":
                self.ending.set()
                continue
            story = self.stories[name]
            end = story.plan.replicas[replica].life(number).end
            if end.drill:
                self._do(self._drill, story, number)
            if replica == "workerpool0-0" and not story.is_reached:
                story.is_reached = True
                if story.plan.cancel is CancelAt.REACHED:
                    self._do(self._cancel_known, story)
            if end.is_kill:
                # Immediately: the sender still exists, so its process ID has not been reused.
                handle = _handle(_keeper(pid, end))
                self._do(self._kill, story, replica, number, handle)

    def _cancel_known(self, story: Story) -> None:
        """A program may report progress before the response to its submission has arrived."""
        while not story.public and not story.faults_found:
            time.sleep(0.01)
        if story.public:
            self._cancel(story)

    def _drill(self, story: Story, number: int) -> None:
        """Order the drill that ends an incarnation once, with retries."""
        while not story.public and not story.faults_found:
            time.sleep(0.01)
        order = story.plan.drill(number)
        taken = False
        while not taken:
            try:
                self._victim.call("POST", f"/trainshed/v1/jobs/{story.target}:drill", order)
                taken = True
            except (OSError, http.client.HTTPException):
                taken = self._is_ordered(story, order)
            except RequestRejected as refused:
                # A drain may have ended that incarnation, and the job may have finished since.
                taken = refused.status == 400
                if refused.status not in (400, 503):
                    raise
                time.sleep(0.05)
        self.tell("drilled", job=story.plan.name, life=number, kind=order["kind"])

    def _is_ordered(self, story: Story, order: Mapping[str, Any]) -> bool:
        """Return whether an order without a response was accepted: a restarted service soon writes it into
        the job.
        """
        until = time.monotonic() + _PUBLISH_TIMEOUT
        while time.monotonic() < until:
            report, _ = self._victim.call_with_retries(
                "GET", f"/trainshed/v1/jobs/{story.target}/resumeReport"
            )
            if any(part["drill"]["atLine"] == order["atLine"] for part in report["drills"]):
                return True
            time.sleep(0.1)
        return False

    def _kill(self, story: Story, replica: str, number: int, handle: int) -> None:
        if handle < 0:
            return  # It received an eviction notice and has just exited.
        end = story.plan.replicas[replica].life(number).end
        order = signal.SIGSTOP if end is End.SHIM_HANGS else signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, order)
        os.close(handle)
        story.kills.add((replica, number))
        self._victim.stirred.set()
        how = end.value
        self.tell("replica killed", job=story.plan.name, replica=replica, life=number, how=how)

    def _arguments(self, plan: JobPlan, position: int, pool: Pool) -> list[str]:
        lives = json.dumps([life.document() for life in pool.lives])
        return [str(self._diary / plan.name), self._door, str(position), lives]


def _handle(pid: int) -> int:
    """Return a pidfd of a process, or -1 if it has exited."""
    try:
        return os.pidfd_open(pid) if pid else -1
    except ProcessLookupError:
        return -1


def _keeper(pid: int, end: End) -> int:
    """Return the process to kill: the program or its parent; 0 if it no longer exists."""
    wanted = _PARENT_TITLES.get(end, "")
    while pid > 1:
        try:
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        except OSError:
            return 0
        if name.endswith(wanted):
            return pid
        pid = int(rest.split()[1])
    return 0
