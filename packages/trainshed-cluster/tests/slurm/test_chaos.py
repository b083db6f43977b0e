"""Fifty jobs of mixed shape on a cluster of the lab, whose service, controller, nodes and network are killed
and cut at random: each ends as it has to, none runs twice at once, and every line is kept once."""

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

from tests.chaos.deeds import Deeds, diary_of
from tests.chaos.kinds import make_plans
from tests.chaos.plans import Pace
from tests.chaos.run import state_at_end, warm_up
from tests.chaos.verify import check
from tests.chaos.victim import Victim
from tests.e2e.running import common_place
from tests.failure_entries import toml
from tests.slurm.chaos import KINDS, LEASE, Mischief, by_faults
from tests.slurm.lab import SlurmLab, why_not
from tests.slurm.nodes import until
from tests.slurm.whole import AGENTS, configure

JOBS = int(os.environ.get("TRAINSHED_CHAOS_JOBS", "50"))
SECONDS = float(os.environ.get("TRAINSHED_CHAOS_SECONDS", "240"))
END = 240.0
"""Seconds after the last fault within which every job must be over."""
KEPT = 8.0
"""Seconds for which nodes are kept."""
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
"""How many losses a job outlives is the failure table's affair: here it is all of them."""

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("keep", [0, KEPT], ids=["nodes given back", "nodes kept"])
def test_jobs_outlive_whatever_befalls_their_cluster(tmp_path: Path, keep: float) -> None:
    """Where nodes are kept, one program after the other begins on them, in forks (docs/adr/0083)."""
    if reason := why_not():
        pytest.skip(f"NOT TESTED: the Slurm engine: {reason}")
    seed = int(os.environ.get("TRAINSHED_CHAOS_SEED", secrets.randbelow(10**6)))
    print(f"seed {seed}, kept in {tmp_path}")
    plans = make_plans(seed, JOBS, Pace(1, 20), KINDS)
    # Slurm gives nodes up before their agents' leases are over, and nothing may follow from that.
    with SlurmLab(tmp_path / "lab", [common_place()]) as lab:
        # A path that is short enough for a socket, and lies where nodes see it.
        place = Path(tempfile.mkdtemp(prefix="c", dir=common_place()))
        directory = configure(lab, "chaos", SETTINGS, f"keep = {keep:g}", lease=LEASE, place=place)
        diary_of(directory).mkdir(parents=True)
        victim = Victim(directory / "data", "--config", str(directory / "config.toml"))
        deeds = Deeds(victim, directory, plans)
        mischief = Mischief(lab, victim, deeds, seed)
        wrong: list[str] = []
        try:
            warm_up(victim)
            began, waiting = time.monotonic(), iter(plans)
            submitted = 0
            while (passed := time.monotonic() - began) < SECONDS:
                while submitted * SECONDS < passed * 1.25 * JOBS and submitted < JOBS:
                    deeds.submit(next(waiting))
                    submitted += 1
                mischief.one()
            victim.start()
            assert victim.wait()
            deeds.settle()
            deadline = time.monotonic() + END
            stories = list(deeds.stories.values())
            for story in stories:
                if story.public:
                    state_at_end(victim.service(), story.target, deadline)
            deeds.close()
            judge = partial(by_faults, faults=mischief.done)
            reports = [check(story, victim.service(), directory, judge) for story in stories]
            wrong += [
                f"{report.name} ({report.kind}): {text}"
                for report in reports
                for text in report.wrong
            ]
            kinds = Counter(fault.kind for fault in mischief.done)
            print(f"{sum(kinds.values())} faults: {dict(kinds)}")
            print(f"{Counter((report.kind, report.state) for report in reports)}")
            print(sum((report.counts for report in reports), Counter[str]()))
            wrong += [f"not given back: {line}" for line in _held(lab)]
            for node in lab.nodes:
                kept = [path.name for path in lab.on_disk(node, AGENTS).glob("trainshed-*")]
                wrong += [f"left on {node}: {name}" for name in kept]
        finally:
            victim.end(with_jobs=True)
            shutil.copytree(
                directory, tmp_path / "kept", ignore=shutil.ignore_patterns("*.sock", "door")
            )
        wrong += victim.faults
        assert not wrong, f"seed {seed}:\n" + "\n".join(wrong)


def _held(lab: SlurmLab) -> list[str]:
    """Allocations that are there after a while, those left out that Slurm itself is still ending: a node that
    was cut off when it was told to is told again only minutes later."""
    held: list[str] = []
    with contextlib.suppress(TimeoutError):
        for _ in until("the end of all allocations", 60):
            rows = lab.slurm("squeue", "-h", "-o", "%T %i %j %r %N").splitlines()
            held = [line for line in rows if not line.startswith("COMPLETING")]
            if not held:
                print("still ending:", rows)
                break
    return held
