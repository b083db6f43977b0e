"""The chaos run: jobs, kills, and the verification of the jobs' outcomes (`python -m tests.chaos --help`).

Linux only: the run receives process IDs through a socket, and adopts the children of a killed service.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.actions import JobActions, Story, diary_of
from tests.chaos.disk import DiskUnsupported, SmallDisk
from tests.chaos.kinds import WITH_DRAINS, make_plans
from tests.chaos.maintenance import Maintenance
from tests.chaos.run_load import Options, run_load
from tests.chaos.tuning import Tunings
from tests.chaos.verify import FINAL, Report, by_plan, check
from tests.chaos.victim import Victim, request
from tests.e2e.processes import children, find_marked, leftovers
from tests.e2e.running import CUSTOM_JOBS, Service, container_job
from tests.failure_entries import toml

SETTINGS: Final = """\
grace = 2
max_replicas = {replicas}
nodes = {nodes}
capacity = "{capacity}"
node_cpus = {cpus}
node_memory = {memory}

""" + toml("stock_out", back_off=[0.5, 1])
REPLICAS: Final = 24
"""Maximum replicas at once. Other jobs wait in the queue."""
MACHINE: Final = (4, 15)
"""CPUs and GiB of an n1-standard-4, the machine type of every replica."""
BUILD: Final = 600.0
"""Seconds for the first job, which may have to build its runtime."""
END: Final = 180.0
"""Seconds after the last kill within which all jobs must finish."""
_SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER: orphans of a killed service become children of this process."""


def run(options: Options) -> int:
    """Return the exit status: 0 if everything matches docs/spec."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    directory = Path(tempfile.mkdtemp(prefix="trainshed-chaos-"))
    directory.chmod(0o755)
    data = directory / "data"
    config = directory / "settings.toml"
    config.write_text(_settings(options))
    diary = diary_of(directory)
    disk = _small_disk(options, data, diary)
    diary.mkdir(parents=True, exist_ok=True)
    plans = make_plans(options.seed, options.jobs, options.pace, _kinds(options))
    victim = Victim(data, "--config", str(config))
    actions = JobActions(victim, directory, plans)
    tunings = Tunings(victim, diary, options.tunings, options.pace.shortest / 10)
    maintenance = Maintenance(victim, options.nodes, options.seed, actions.tell)
    reports: list[Report] = []
    wrong: list[str] = []
    began = time.monotonic()
    try:
        warm_up(victim)
        maintenance.begin()
        run_load(options, victim, actions, plans, tunings=tunings, disk=disk)
        maintenance.close()
        stories = list(actions.stories.values())
        wrong += _wait_for_ends(victim, stories, tunings)
        actions.close()
        maintenance.check_empty()
        service = victim.service()
        for tuning in tunings.all:
            wrong += [f"{tuning.name}: {text}" for text in tunings.wrong(tuning, service)]
        full = disk.full if disk else ()
        judge = partial(by_plan, drains=maintenance.drains, full=full, hangs=victim.hangs)
        reports = [check(story, service, directory, judge) for story in stories]
        if len(frozenset[bool]().union(*(report.isolation_states for report in reports))) > 1:
            wrong.append("some programs had a sandbox, and others had none")
    except Exception as failure:  # On any error, keep the directory and stop the service.
        wrong.append(f"the run itself failed: {failure!r}")
    finally:
        victim.end(with_jobs=bool(wrong) or not reports)
        maintenance.close()
        wrong += _left_behind(directory, disk.places if disk is not None else ())
        wrong += [*victim.faults, *maintenance.faults_found]
    wrong += [f"{of.name} ({of.kind}): {text}" for of in reports for text in of.wrong[:6]]
    text = "\n".join(_report(options, reports, actions.done, wrong))
    print(text, f"\n{time.monotonic() - began:.0f} s", flush=True)
    if disk is not None:
        if wrong:
            disk.keep(directory / "data-kept")
        disk.close()
    is_well = not wrong and len(reports) == len(plans)
    if is_well:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        (directory / "report.txt").write_text(text + "\n")
        print(f"kept: {directory} (report.txt, events.jsonl, service.log, wrong/, data/)")
    return 0 if is_well else 1


def _small_disk(options: Options, data: Path, diary: Path) -> SmallDisk | None:
    """Return the disk to fill, if requested and supported."""
    if "disk" not in options.faults:
        return None
    try:
        return SmallDisk(data, diary.parent)
    except DiskUnsupported as why:
        print(f"NOTE: no disk is filled in this run: {why}", flush=True)
        return None


def _settings(options: Options) -> str:
    """Strict nodes have capacity for the replicas that may run at once. Other nodes are as large as the
    machine.
    """
    share = -(-REPLICAS // options.nodes) if options.strict else 0
    cpus, memory = (share * amount for amount in MACHINE)
    capacity = "strict" if options.strict else "relaxed"
    return SETTINGS.format(
        replicas=REPLICAS, nodes=options.nodes, capacity=capacity, cpus=cpus, memory=memory
    )


def _kinds(options: Options) -> tuple[str, ...]:
    return options.kinds or (WITH_DRAINS if options.nodes > 1 else ())


def warm_up(victim: Victim) -> None:
    """Run a job before the first kill, so that the runtime is built."""
    victim.start()
    if not victim.wait():
        raise RuntimeError("the service does not start; see service.log")
    name = victim.call("POST", CUSTOM_JOBS, container_job("print('warm')", name="warm"))["name"]
    state = state_at_end(victim.service(), name.rsplit("/", 1)[1], time.monotonic() + BUILD)
    if state != "SUCCEEDED":
        raise RuntimeError(f"the first job, without any kill, is {state}")


def _wait_for_ends(victim: Victim, stories: list[Story], tunings: Tunings) -> Iterator[str]:
    """Return the jobs that did not finish in time."""
    until = time.monotonic() + END
    for tuning in tunings.all:
        if tuning.public:
            state = state_at_end(victim.service(), tuning.target, until)
            if state not in FINAL:
                yield f"{tuning.name} is {state} {END:g} s after the last kill"
    for story in stories:
        if story.public:
            state = state_at_end(victim.service(), story.target, until)
            if state not in FINAL:
                yield f"{story.plan.name} ({story.plan.kind}) is {state} {END:g} s after the last kill"


def state_at_end(service: Service, target: str, until: float) -> str:
    """Return a job's final state, or its state at the deadline. Waits on the service's stream."""
    with contextlib.suppress(AssertionError):
        service.finish(target, max(1.0, until - time.monotonic()))
    return request(service, "GET", f"/trainshed/v1/jobs/{target}")["state"]


def _left_behind(directory: Path, mounted: Sequence[str]) -> Iterator[str]:
    """Return processes, mounts, cgroups and slots that remain at the end. `mounted`: by the run itself."""
    deadline = time.monotonic() + 10
    for pid in children(os.getpid()):
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            handle = os.pidfd_open(pid)
            ended = select.select([handle], [], [], max(0.0, deadline - time.monotonic()))[0]
            os.close(handle)
            if ended:
                os.waitpid(pid, 0)
            else:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                yield f"process {pid} is left: {command.decode(errors='replace')[:120]}"
                os.kill(pid, signal.SIGKILL)
    for pid in find_marked(str(diary_of(directory))):
        yield f"program {pid} is left"
    for thing in leftovers(directory / "data"):
        if not any(f" {place} " in thing for place in mounted):
            yield f"left on the machine: {thing}"


def _report(options: Options, reports: list[Report], done: Counter[str], wrong: list[str]) -> Iterator[str]:
    """Return the outcomes of the jobs, the actions in the meantime, and all errors."""
    states = Counter(report.state for report in reports)
    counts = sum((report.counts for report in reports), Counter[str]())
    yield f"{len(reports)} jobs of {len({report.kind for report in reports})} kinds"
    for what in (states, counts, done):
        yield ", ".join(f"{name} {count}" for name, count in what.most_common())
    yield from (f"WRONG: {text}" for text in wrong)
    verdict = "NOT everything is right" if wrong else "everything is right"
    yield f"{verdict}; again with the same options and --seed {options.seed}"
