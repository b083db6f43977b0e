"""Fifty jobs of various kinds on a cluster of the lab. The service, the controller, nodes and network are
killed and disconnected at random. Each job has its expected end, none runs twice at once, and every log line
is stored once."""

import contextlib
import os
import secrets
import shutil
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.actions import JobActions, diary_of
from tests.chaos.kinds import make_plans
from tests.chaos.plans import Pace
from tests.chaos.run import state_at_end, warm_up
from tests.chaos.verify import check
from tests.chaos.victim import Victim
from tests.e2e.running import common_place
from tests.failure_entries import toml
from tests.slurm.chaos import KINDS, LEASE, FaultInjector, wrong_outcomes
from tests.slurm.lab import SlurmLab, unavailable_reason
from tests.slurm.nodes import until
from tests.slurm.services import AGENTS, configure

JOBS = int(os.environ.get("TRAINSHED_CHAOS_JOBS", "50"))
FAULT_SECONDS = float(os.environ.get("TRAINSHED_CHAOS_SECONDS", "240"))
END_TIMEOUT = 240.0
"""Seconds after the last fault within which every job must finish."""
KEEP_SECONDS = 8.0
"""Seconds for which idle allocations are kept."""
SETTINGS = """
grace = 2
memory_per_replica = 200
""" + "".join(
    (
        toml("internal_error", retries=9, back_off=[0.5]),
        *(
            toml(name, restarts=50, retries=9)
            for name in ("replica_lost", "node_failed", "agent_lost", "allocation_revoked")
        ),
    )
)
"""The failure table limits how many losses a job survives. Here the limit allows all of them."""

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("keep", [0, KEEP_SECONDS], ids=["without idle allocations", "with idle allocations"])
def test_jobs_survive_random_cluster_faults(tmp_path: Path, keep: float) -> None:
    """With kept allocations, programs of several attempts start in forks on the same agents
    (docs/adr/0083)."""
    if reason := unavailable_reason():
        pytest.skip(f"NOT TESTED: the Slurm engine: {reason}")
    seed = int(os.environ.get("TRAINSHED_CHAOS_SEED", secrets.randbelow(10**6)))
    print(f"seed {seed}, kept in {tmp_path}")
    plans = make_plans(seed, JOBS, Pace(1, 20), KINDS)
    # Slurm marks nodes as down before their agents have been silent for a whole lease, and that must have no
    # effect.
    with SlurmLab(tmp_path / "lab", [common_place()]) as lab:
        # A short path for sockets that nodes can see.
        place = Path(tempfile.mkdtemp(prefix="c", dir=common_place()))
        directory = configure(lab, "chaos", SETTINGS, f"keep = {keep:g}", lease=LEASE, place=place)
        diary_of(directory).mkdir(parents=True)
        victim = Victim(directory / "data", "--config", str(directory / "config.toml"))
        actions = JobActions(victim, directory, plans)
        mischief = FaultInjector(lab, victim, actions, seed)
        wrong: list[str] = []
        try:
            warm_up(victim)
            began, waiting = time.monotonic(), iter(plans)
            submitted = 0
            while (passed := time.monotonic() - began) < FAULT_SECONDS:
                while submitted * FAULT_SECONDS < passed * 1.25 * JOBS and submitted < JOBS:
                    actions.submit(next(waiting))
                    submitted += 1
                mischief.inject_one()
            victim.start()
            assert victim.wait()
            actions.settle()
            deadline = time.monotonic() + END_TIMEOUT
            stories = list(actions.stories.values())
            for story in stories:
                if story.public:
                    state_at_end(victim.service(), story.target, deadline)
            actions.close()
            judge = partial(wrong_outcomes, faults=mischief.done)
            reports = [check(story, victim.service(), directory, judge) for story in stories]
            wrong += [f"{report.name} ({report.kind}): {text}" for report in reports for text in report.wrong]
            kinds = Counter(fault.kind for fault in mischief.done)
            print(f"{sum(kinds.values())} faults: {dict(kinds)}")
            print(f"{Counter((report.kind, report.state) for report in reports)}")
            print(sum((report.counts for report in reports), Counter[str]()))
            wrong += [f"not given back: {line}" for line in _remaining_allocations(lab)]
            for node in lab.nodes:
                kept = [path.name for path in lab.on_disk(node, AGENTS).glob("trainshed-*")]
                wrong += [f"left on {node}: {name}" for name in kept]
        finally:
            victim.end(with_jobs=True)
            shutil.copytree(directory, tmp_path / "kept", ignore=shutil.ignore_patterns("*.sock", "door"))
        wrong += victim.faults
        assert not wrong, f"seed {seed}:\n" + "\n".join(wrong)


def _remaining_allocations(lab: SlurmLab) -> list[str]:
    """Return the allocations that still exist after a while, without allocations that Slurm is ending. Slurm
    repeats its request to end an allocation only minutes later if the node was disconnected."""
    held: list[str] = []
    with contextlib.suppress(TimeoutError):
        for _ in until("the end of all allocations", 60):
            rows = lab.slurm("squeue", "-h", "-o", "%T %i %j %r %N").splitlines()
            held = [line for line in rows if not line.startswith("COMPLETING")]
            if not held:
                print("still ending:", rows)
                break
    return held
