"""Runs the hostile programs against an attack setup, and reports their results."""

import contextlib
import json
import os
import select
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.hostile.attack_setup import OTHER, OWN, AttackSetup


@dataclass(frozen=True)
class Attack:
    """The results. `verdicts`: by attempt, the data obtained. `why`: the received errors and durations.
    `controls`: operations that must succeed. `log_memory`: peak bytes of the attacker's shim during the
    flood.
    """

    job: str
    verdicts: dict[str, str]
    why: dict[str, str]
    controls: dict[str, int]
    log_memory: int
    error: dict[str, Any]


def attack(setup: AttackSetup) -> Attack:
    """Start a job of the other project, wait until another of its jobs has failed, and run the attacker to
    its end.
    """
    running, failing = setup.secret(), setup.secret()
    failed = setup.submit(OTHER, "victim", failing, "fail")
    other = setup.submit(OTHER, "victim", running, "wait", SECRET=running)
    # The first job may have to build the environment of all jobs.
    setup.service.finish(failed, 300)
    endpoint = setup.printed_value(other, "ENDPOINT")
    setup.service.wait_for_autopsy(failed)
    name = f"hostile-{uuid.uuid4().hex}"
    with setup.listening(name):
        at_home = setup.home_file()
        try:
            target = setup.target(setup.processes(other, running), other, endpoint, name, at_home)
            job = setup.submit(OWN, "attacker", TARGET=json.dumps(target))
            verdicts = json.loads(setup.printed_value(job, "VERDICTS"))
        finally:
            if at_home is not None:
                at_home.unlink()
    results = {word: rest for word, _, rest in (x.partition(" ") for x in setup.service.lines(job))}
    if at_home is None:
        del verdicts["home"]
    shim = setup.shim(min(setup.processes(job, name)))
    handle = os.pidfd_open(shim)
    memory = _peak(shim)
    setup.service.put("attacking", "heard", b"")
    # It ends with its job. Read its peak before.
    while not select.select([handle], [], [], 0.01)[0]:
        memory = max(memory, _peak(shim))
    os.close(handle)
    view = setup.service.finish(job, 60)
    why, controls = (json.loads(results[word]) for word in ("WHY", "CONTROLS"))
    return Attack(job, verdicts, why, controls, memory, view["error"])


def _peak(process: int) -> int:
    """Return bytes, or 0 after its end."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


@dataclass(frozen=True)
class MemoryUse:
    """The result of a program that used too much memory. `peak`: the last number of bytes that
    it reported.
    """

    error: dict[str, Any]
    peak: int
    has_survived: bool


def memory_use_of(setup: AttackSetup, job: str) -> MemoryUse:
    """Return how the job of a `memory_hog` ended."""
    view = setup.service.finish(job, 60)
    lines = setup.service.lines(job)
    *_, last = (line.split()[1] for line in lines if line.startswith("HAS "))
    return MemoryUse(view.get("error") or {}, int(last) << 20, "SURVIVED" in lines)
