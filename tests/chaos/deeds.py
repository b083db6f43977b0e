"""What is done to jobs in a chaos run: submitted once, cancelled, and their programs and shims killed from outside."""

import http.client
import json
import os
import re
import signal
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.chaos.expected import Cancel
from tests.chaos.plans import CancelAt, End, JobPlan, Pool
from tests.chaos.victim import Refused, Unreachable, Victim
from tests.e2e.running import CUSTOM_JOBS, PROJECT, REGION, SKLEARN

ML_JOBS: Final = f"/v1/projects/{PROJECT}/jobs"
_PROGRAM: Final = (Path(__file__).parent / "program.py").read_text("utf-8")
_CREDENTIALS: Final = struct.Struct("3i")

_Arguments = Callable[[JobPlan, int, Pool], list[str]]
"""What the replicas of the pool at a position are told."""


@dataclass
class Story:
    """One job as those know it who act on it. `public`: its path in its own API. `trouble`: what should not be."""

    plan: JobPlan
    public: str = ""
    uid: str = ""
    submits: int = 0
    cancel: Cancel | None = None
    killed: list[str] = field(default_factory=list[str])
    trouble: list[str] = field(default_factory=list[str])

    @property
    def target(self) -> str:
        """How our own API finds it."""
        return urllib.parse.quote(self.public.removeprefix("/v1/"), safe="")


class Deeds:
    """Acts on jobs, each deed in a thread of its own. `told`: called with each thing done, for the record."""

    def __init__(self, victim: Victim, directory: Path, plans: list[JobPlan]) -> None:
        self.stories = {plan.name: Story(plan) for plan in plans}
        self.stirred = threading.Event()
        """Set whenever a request is about to be sent, or something was killed from outside: a good moment for more."""
        self._victim = victim
        self._diary = directory / "diary"
        self._record = (directory / "events.jsonl").open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._hands = ThreadPoolExecutor(12, thread_name_prefix="deed")
        self._under_way: list[Future[None]] = []
        self._door = str(directory / "door")
        self._ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._ears.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._ears.bind(self._door)
        Path(self._door).chmod(0o777)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def tell(self, what: str, **details: Any) -> None:
        """Write down what was done, with its moment."""
        with self._lock:
            self._record.write(json.dumps({"at": time.time(), "what": what, **details}) + "\n")
            self._record.flush()

    def submit(self, plan: JobPlan) -> None:
        """Submit a job, however often that takes; returns at once."""
        self._do(self._submit, self.stories[plan.name])

    def close(self) -> None:
        """Wait for what is under way, and listen no more. What went wrong stands in the stories."""
        while self._under_way:
            self._under_way.pop().result()
        self._hands.shutdown()
        self._ears.close()
        self._record.close()

    def settle(self) -> None:
        """Wait until every job is submitted and every cancel answered, as far as they were begun."""
        for future in list(self._under_way):
            future.result()

    def _do(self, deed: Callable[..., None], story: Story, *args: Any) -> None:
        def guarded() -> None:
            try:
                deed(story, *args)
            except (Unreachable, Refused, OSError) as failure:
                story.trouble.append(f"{deed.__name__}: {failure}")

        self._under_way.append(self._hands.submit(guarded))

    def _submit(self, story: Story) -> None:
        plan = story.plan
        body = _ml_job(plan, self._arguments) if plan.is_ml else _custom_job(plan, self._arguments)
        while not story.public:
            story.submits += 1
            self._victim.address()
            self.stirred.set()
            try:
                if plan.is_ml:
                    self._submit_ml(story, body)
                else:
                    self._submit_vertex(story, body)
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
            except Refused as refused:
                if refused.status != 503:
                    raise
                time.sleep(0.05)
        self.tell("submitted", job=plan.name, public=story.public, tries=story.submits)
        if plan.cancel is CancelAt.ONCE:
            self._cancel(story)

    def _submit_ml(self, story: Story, body: Mapping[str, Any]) -> None:
        """The id is the client's own: the same request once more is refused with 409 if it was taken before."""
        public = f"{ML_JOBS}/{story.plan.name}"
        try:
            self._victim.call("POST", ML_JOBS, body)
        except Refused as refused:
            if refused.status != 409 or story.submits == 1:
                raise
        story.public = public

    def _submit_vertex(self, story: Story, body: Mapping[str, Any]) -> None:
        """The id is the service's: who got no answer looks first whether the job is there."""
        if story.submits > 1:
            wanted = urllib.parse.quote(f'display_name="{story.plan.name}"')
            listed = self._victim.call("GET", f"{CUSTOM_JOBS}?filter={wanted}")
            for job in listed.get("customJobs", ()):
                story.public = f"/v1/{job['name']}"
            if story.public:
                return
        story.public = f"/v1/{self._victim.call('POST', CUSTOM_JOBS, body)['name']}"

    def _cancel(self, story: Story) -> None:
        self._victim.address()
        self.stirred.set()
        sent = time.time_ns()
        try:
            _, tries = self._victim.insist("POST", f"{story.public}:cancel", {})
            story.cancel = Cancel(sent, time.time_ns(), True, tries)
        except Refused as refused:
            if refused.status != 400:
                raise
            story.cancel = Cancel(sent, time.time_ns(), False, refused.tries)
        self.tell(
            "cancelled",
            job=story.plan.name,
            accepted=story.cancel.accepted,
            sent=sent,
            answered=story.cancel.answered,
            tries=story.cancel.tries,
        )

    def _listen(self) -> None:
        """Hear what programs have reached, and do what their plans want then."""
        space = socket.CMSG_SPACE(_CREDENTIALS.size)
        while True:
            try:
                data, extra, _, _ = self._ears.recvmsg(4096, space)
            except OSError:
                return
            pid = next((_CREDENTIALS.unpack(raw)[0] for _, _, raw in extra), 0)
            name, replica, number, _ = json.loads(data)
            story = self.stories[name]
            plan = story.plan
            end = plan.replicas[replica].life(number).end
            if plan.cancel is CancelAt.REACHED and (replica, number) == ("workerpool0-0", 0):
                self._do(self._cancel_known, story)
            if end in (End.KILLED, End.SHIM_KILLED):
                # At once: the process that spoke is still there, so that its id is its own.
                handle = os.pidfd_open(pid) if end is End.KILLED else -1
                self._do(self._kill, story, replica, number, handle)

    def _cancel_known(self, story: Story) -> None:
        """A program may speak before the answer to its submission has come."""
        while not story.public and not story.trouble:
            time.sleep(0.01)
        if story.public:
            self._cancel(story)

    def _kill(self, story: Story, replica: str, number: int, handle: int) -> None:
        if handle >= 0:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
            what = "program"
        else:
            while not story.public and not story.trouble:
                time.sleep(0.01)
            os.kill(_shim(self._slots(story), replica), signal.SIGKILL)
            what = "shim"
        story.killed.append(replica)
        self.stirred.set()
        self.tell("killed", job=story.plan.name, replica=replica, life=number, victim=what)

    def _slots(self, story: Story) -> Path:
        if not story.uid:
            view, _ = self._victim.insist("GET", f"/trainshed/v1/jobs/{story.target}")
            story.uid = view["uid"]
        return self._victim.data / "slots" / story.uid

    def _arguments(self, plan: JobPlan, position: int, pool: Pool) -> list[str]:
        lives = json.dumps([life.document() for life in pool.lives])
        return [str(self._diary / plan.name), self._door, str(position), lives]


def _shim(slots: Path, replica: str) -> int:
    """The process id of a live replica's shim, from the latest attempt's journal."""
    attempts = sorted(
        (int(entry.name) for entry in slots.iterdir() if entry.name.isdigit()), reverse=True
    )
    for attempt in attempts:
        journal = slots / str(attempt) / replica / "journal"
        if journal.exists():
            started = re.findall(r'"shim": ?(\d+)', journal.read_text())
            if started:
                return int(started[-1])
    raise OSError(f"no shim of {replica} is recorded in {slots}")


def _custom_job(plan: JobPlan, arguments: _Arguments) -> dict[str, Any]:
    pools = [
        {
            "machineSpec": {"machineType": "n1-standard-4"},
            "replicaCount": str(pool.replicas),
            "containerSpec": {
                "imageUri": SKLEARN,
                "command": ["python3", "-c", _PROGRAM],
                "args": arguments(plan, position, pool),
            },
        }
        for position, pool in enumerate(plan.pools)
    ]
    scheduling = {
        "restartJobOnWorkerRestart": plan.restart_whole,
        "disableRetries": plan.no_retries,
    }
    return {
        "displayName": plan.name,
        "jobSpec": {
            "workerPoolSpecs": pools,
            "scheduling": {key: True for key, is_set in scheduling.items() if is_set},
        },
    }


def _ml_job(plan: JobPlan, arguments: _Arguments) -> dict[str, Any]:
    training: dict[str, Any] = {"scaleTier": "CUSTOM", "region": REGION}
    for position, (role, pool) in enumerate(zip(("master", "worker"), plan.pools, strict=False)):
        training[f"{role}Type"] = "n1-standard-4"
        training[f"{role}Config"] = {
            "imageUri": SKLEARN,
            "containerCommand": ["python3", "-c", _PROGRAM],
            "containerArgs": arguments(plan, position, pool),
        }
        if position:
            training[f"{role}Count"] = str(pool.replicas)
    return {"jobId": plan.name, "trainingInput": training}
