"""Slurm as a cluster of the remote transport: what is held, what is refused, agents that outlive everything
on the hub, and nothing held that nobody asked for. Against a real one."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.slurm.lab import CPUS, GPUS, MEMORY_MB, SlurmLab, enforces
from tests.slurm.nodes import until
from trainshed.core.capacity import MachineWanted, OthersUse
from trainshed.core.failure.evidence import Cause
from trainshed.core.names import JobUid
from trainshed.engines.port import NodeState
from trainshed_cluster.remote.cluster import (
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
    Hold,
    HoldName,
    NodeNeed,
)
from trainshed_cluster.slurm import client
from trainshed_cluster.slurm.cluster import SlurmCluster
from trainshed_cluster.slurm.routes import Routes
from trainshed_cluster.slurm.settings import SlurmSettings, parse

pytestmark = pytest.mark.anyio

MIB = 1 << 20
T4 = "NVIDIA_TESLA_T4"
_uids = itertools.count(1)
_AGENT = "import pathlib, sys, time; text = sys.stdin.read().strip(); print('taken', flush=True); "
_STAYS = _AGENT + "pathlib.Path('/tmp/' + text).write_text(text); time.sleep(600)"


def settings_of(lab: SlurmLab, **more: object) -> SlurmSettings:
    table = {"commands": str(lab.commands), "accelerators": {"NVIDIA_TESLA_T4": "t4"}, **more}
    return parse(table)


def cluster_of(settings: SlurmSettings, service: str) -> SlurmCluster:
    return SlurmCluster(settings, service, look_every=0.5)


@pytest.fixture
async def cluster(slurm_lab: SlurmLab) -> AsyncIterator[SlurmCluster]:
    opened = cluster_of(settings_of(slurm_lab), "test")
    await opened.start()
    yield opened
    await opened.close()
    slurm_lab.clear()


def a_name() -> HoldName:
    return HoldName("test", JobUid(next(_uids)), 1, 0)


def need(node: str, **more: object) -> NodeNeed:
    fields: dict[str, object] = {"replicas": 1, "vcpus": 2.0, "memory_bytes": 200 * MIB, **more}
    return NodeNeed(node=node, **fields)  # pyright: ignore[reportArgumentType] - by name, for short


def jobs(lab: SlurmLab) -> dict[str, str]:
    return dict(line.split() for line in lab.slurm("squeue", "-h", "-o", "%j %T").splitlines())


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


async def looked(cluster: SlurmCluster, is_so: Callable[[ClusterReport], bool]) -> ClusterReport:
    async with asyncio.timeout(60):
        if is_so(cluster.report()):
            return cluster.report()
        async for report in cluster.watch():
            if is_so(report):
                return report
    raise AssertionError("the cluster was closed")


def await_that(what: str, true: Callable[[], bool]) -> None:
    for _ in until(what):
        if true():
            return


def submit_and_die(lab: SlurmLab, name: HoldName, *options: str) -> None:
    command = [str(lab.commands / "salloc"), "--job-name", str(name), "--no-shell", *options]
    salloc = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    await_that("a request waits", lambda: str(name) in jobs(lab))
    salloc.kill()
    salloc.wait()


async def reason_told(cluster: SlurmCluster, name: HoldName) -> None:
    async for _ in every_moment():
        if name in cluster.report().delays:
            return


async def every_moment() -> AsyncIterator[None]:
    while True:
        yield
        await asyncio.sleep(0.02)


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def sruns_of(hold: Hold) -> list[int]:
    """Processes of srun that are still there for a hold, the one that started the others first."""
    command = ["ps", "-C", "srun", "-o", "pid=,args="]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return sorted(int(line.split()[0]) for line in printed.splitlines() if str(hold.name) in line)


async def test_nodes_are_told_with_what_others_leave_of_them(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    first, *_ = cluster.report().nodes
    assert (first.node.name, first.address) == ("node1", slurm_lab.address("node1"))
    assert first.state is NodeState.UP and not first.cause
    assert first.node.vcpus == CPUS and first.node.memory_bytes == MEMORY_MB * MIB
    assert first.node.accelerators == (("NVIDIA_TESLA_T4", GPUS),)
    others = ["--no-shell", "-J", "others", "-w", "node2", "-c", "6", "--mem=1000", "--gres=gpu:1"]
    slurm_lab.slurm("salloc", *others)
    await cluster.acquire(a_name(), [need("node2", vcpus=3.0), need("node3", vcpus=3.0)])
    theirs = OthersUse(6, 1000 * MIB, ((T4, 1),))
    # Half of what a look from before tells may be older; one that sees the same again is not told.
    report = await looked(cluster, lambda r: bool(r.agents) and r.nodes[1].node.others == theirs)
    sizes = {(own.node.vcpus, own.node.memory_bytes) for own in report.nodes[1:]}
    assert sizes == {(CPUS, MEMORY_MB * MIB)}


async def test_what_is_held_is_found_again_and_given_back(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    name, needs = a_name(), [need("node1"), need("node3")]
    hold = await cluster.acquire(name, needs)
    assert hold == await cluster.acquire(name, needs) and hold.nodes == ("node1", "node3")
    again = cluster_of(settings_of(slurm_lab), "test")
    await again.start()
    assert again.report().agents == {name: frozenset()}
    assert await again.acquire(name, needs) == hold
    with pytest.raises(TimeoutError):  # Programs may run there.
        await asyncio.wait_for(cluster.acquire(name, needs), 0.001)
    assert jobs(slurm_lab) == {str(name): "RUNNING"}
    stranger = cluster_of(settings_of(slurm_lab), "other")
    await stranger.start()
    assert not stranger.report().agents
    await again.give_back(name)
    await again.give_back(name)
    await looked(cluster, lambda report: not report.agents)
    await asyncio.gather(again.close(), stranger.close())


@pytest.mark.parametrize(
    ("more", "table", "text"),
    [
        ({"memory_bytes": 1 << 50}, {}, "1048576.0 GiB"),
        ({"vcpus": 64.0}, {}, "64 CPUs|Slurm would never start this"),
        ({"node": "node9"}, {}, "[Ii]nvalid node name"),
        ({"accelerators": 9, "machine": MachineWanted(None, T4)}, {}, "9 GPUs t4"),
        ({"accelerators": 1, "machine": MachineWanted(None, "NVIDIA_TESLA_K80")}, {}, "TESLA_K80"),
        ({}, {"partition": "nope"}, "[Ii]nvalid partition"),
        ({}, {"partition": "tiny", "node": "node2"}, "Slurm refuses"),
        ({}, {"constraint": "quick"}, "[Ii]nvalid feature"),
        ({}, {"partition": "short", "extra": ["--time=60"]}, "Partition(TimeLimit|Config)"),
        ({}, {"extra": ["--reservation=none"]}, "reservation"),
    ],
)
async def test_what_can_never_be_is_refused_in_slurms_words(
    slurm_lab: SlurmLab, more: dict[str, object], table: dict[str, object], text: str
) -> None:
    node = str(table.pop("node", more.pop("node", "node1")))
    opened = cluster_of(settings_of(slurm_lab, **(table | {"partition": "main"})), "test")
    await opened.start()
    opened._routes = Routes(settings_of(slurm_lab, **table))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ClusterRefused, match=text):
        async with asyncio.timeout(60):
            await opened.acquire(a_name(), [need(node, **more)])
    assert not jobs(slurm_lab)
    await opened.close()


async def test_who_waits_is_told_why_and_leaves_nothing_when_it_gives_up(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    first, second = a_name(), a_name()
    await cluster.acquire(first, [need("node1", vcpus=CPUS)])
    waiting = asyncio.ensure_future(cluster.acquire(second, [need("node1")]))
    async with asyncio.timeout(60):
        await reason_told(cluster, second)
    delay = cluster.report().delays[second]
    assert delay.word in ("Resources", "Priority") and delay.position == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert jobs(slurm_lab) == {str(first): "RUNNING"}
    # Once more, and it gets it.
    waiting = asyncio.ensure_future(cluster.acquire(second, [need("node1")]))
    await cluster.give_back(first)
    async with asyncio.timeout(60):
        assert (await waiting).nodes == ("node1",)


async def test_nodes_that_slurm_chooses_are_waited_for_over_a_restart(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    """`queue = "slurm"`: the place in Slurm's queue is kept."""
    first, second, third = a_name(), a_name(), a_name()
    await cluster.acquire(first, [need("node1", vcpus=CPUS)])
    hold = await cluster.acquire(second, [need("node1", vcpus=CPUS)], avoid=["node2"])
    assert hold.nodes == ("node3",)
    both = [need("node1", vcpus=CPUS), need("node2", vcpus=CPUS)]
    waiting = asyncio.ensure_future(cluster.acquire(third, both, avoid=[]))
    async with asyncio.timeout(60):
        await reason_told(cluster, third)
    [before] = slurm_lab.slurm("squeue", "-h", "-t", "PENDING", "-o", "%i").split()
    cluster.detach()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    again = cluster_of(settings_of(slurm_lab), "test")
    await again.start()
    assert again.report().delays[third].position == 1
    waiting = asyncio.ensure_future(again.acquire(third, both, avoid=[]))
    await again.give_back(first)
    async with asyncio.timeout(60):
        hold = await waiting
    assert (hold.nodes, hold.cluster_id) == (("node1", "node2"), before)
    await again.close()


async def test_a_request_that_was_killed_right_after_it_was_made_is_not_held(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    """salloc itself withdraws nothing then."""
    first, second = a_name(), a_name()
    await cluster.acquire(first, [need("node1", vcpus=CPUS)])
    submit_and_die(slurm_lab, second, "--no-kill", "-w", "node1")
    # The service that made it is gone; the next one asks for the same and gets that one, or another one, and
    # there is one.
    waiting = asyncio.ensure_future(asked_until_given(cluster, second))
    await cluster.give_back(first)
    async with asyncio.timeout(60):
        hold = await waiting
    assert jobs(slurm_lab)[str(second)] == "RUNNING"
    await cluster.give_back(hold.name)


async def test_a_request_of_an_earlier_service_whose_limit_is_refused_is_made_again(
    slurm_lab: SlurmLab,
) -> None:
    name = a_name()
    submit_and_die(slurm_lab, name, "--partition=short", "--time=1500")
    opened = cluster_of(settings_of(slurm_lab, partition="short"), "test")
    await opened.start()
    await opened.acquire(name, [need("node1", seconds=90)])
    left = jobs(slurm_lab)
    await opened.close()
    slurm_lab.clear()
    assert left == {str(name): "RUNNING"}


async def asked_until_given(cluster: SlurmCluster, name: HoldName) -> Hold:
    """As the engine does."""
    while True:
        try:
            return await cluster.acquire(name, [need("node1")])
        except ClusterUnavailable:
            await asyncio.sleep(0.1)


async def held_with_agent(cluster: SlurmCluster, code: str = _STAYS) -> Hold:
    hold = await cluster.acquire(a_name(), [need("node1")])
    await cluster.start_agent(hold, "node1", python(code), b"%s\n" % str(hold.name).encode())
    return hold


def agents(lab: SlurmLab, node: str, hold: Hold) -> list[int]:
    """Processes of an agent that has taken its document."""
    for _ in until(f"the agent of {hold.name}"):
        if (lab.directory / f"{node}.tmp" / str(hold.name)).exists():
            break
    return [pid for pid in lab.processes(node) if _is_agent(pid)]


def _is_agent(pid: int) -> bool:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return argv[0] == os.fsencode(sys.executable) and b"-S" in argv


async def test_an_agent_outlives_all_that_started_it(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    hold = await held_with_agent(cluster)
    (agent,) = agents(slurm_lab, "node1", hold)
    for pid in sruns_of(hold):
        os.kill(pid, signal.SIGKILL)
    slurm_lab.stop_controller()
    slurm_lab.start_controller()
    slurm_lab.stop_slurmd("node1")
    slurm_lab.start_slurmd("node1")
    assert lives(agent)
    await looked(cluster, lambda report: report.agents.get(hold.name) == frozenset({"node1"}))
    await cluster.give_back(hold.name)
    await_that("the agent ended", lambda: not lives(agent))
    await looked(cluster, lambda report: not report.agents)


async def test_a_suspended_hold_is_reported_until_it_is_resumed(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    hold = await held_with_agent(cluster)
    assert not cluster.report().suspended
    slurm_lab.slurm("scontrol", "suspend", hold.cluster_id)
    why = "its allocation is suspended in Slurm (SUSPENDED)"
    async with asyncio.timeout(60):
        async for _ in every_moment():
            if cluster.report().suspended:
                break
    assert cluster.report().suspended == {hold.name: why}
    assert cluster.report().agents == {hold.name: frozenset({"node1"})}, "it has not ended"
    slurm_lab.slurm("scontrol", "resume", hold.cluster_id)
    async with asyncio.timeout(60):
        async for _ in every_moment():
            if not cluster.report().suspended:
                break
    # It can be given back as it stands.
    slurm_lab.slurm("scontrol", "suspend", hold.cluster_id)
    await cluster.give_back(hold.name)
    slurm_lab.await_idle()


async def test_who_ended_a_hold_is_told_when_all_of_it_has_ended(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    """Until then Slurm says no more than that it is ending: here of an agent that takes its time."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    hold = await held_with_agent(cluster, code=deaf + _STAYS)
    agents(slurm_lab, "node1", hold)
    slurm_lab.slurm("scancel", hold.cluster_id)
    calls = 0
    async for _ in every_moment():
        try:
            end = await cluster.ended(hold.name)
        except ClusterUnavailable as failure:
            assert "is still ending" in str(failure)
            calls += 1
            continue
        assert end is not None and end.loss is Cause.ALLOCATION_REVOKED
        break
    assert calls


async def test_who_comes_next_need_not_wait_for_what_was_given_back(
    slurm_lab: SlurmLab, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm gives nothing of a node on which a step of an ended job is ending, so it ends before the job."""
    monkeypatch.setattr(client, "_LEAVE_SECONDS", 60.0)
    slow = "import signal; signal.signal(15, lambda *_: (time.sleep(0.5), sys.exit())); "
    hold = await held_with_agent(cluster, code=slow + _STAYS)
    (agent,) = agents(slurm_lab, "node1", hold)
    await cluster.give_back(hold.name)
    assert not lives(agent)


async def test_an_agent_that_cannot_start_is_told_of(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    hold = await cluster.acquire(a_name(), [need("node1")])
    with pytest.raises(ClusterUnavailable, match="there is no no-such-python on node1"):
        await cluster.start_agent(hold, "node1", ["no-such-python"], b"")
    with pytest.raises(ClusterUnavailable, match="node2"):
        await cluster.start_agent(hold, "node2", python("pass"), b"")
    with pytest.raises(ClusterUnavailable, match=f"exit code 1.*errors/{hold.name} there"):
        await cluster.start_agent(hold, "node1", python("sys.exit("), b"x" * 300_000)
    with pytest.raises(ClusterUnavailable):
        await cluster.start_agent(hold, "node1", python("import no_such_module"), b"x\n")
    kept = slurm_lab.directory / "node1.tmp" / f"trainshed-{os.geteuid()}.errors" / str(hold.name)
    await_that("it complained", lambda: kept.exists() and "no_such_module" in kept.read_text())
    await looked(cluster, lambda report: report.agents.get(hold.name) == frozenset())


async def test_an_agent_has_the_devices_and_the_memory_of_its_hold(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    if not enforces():
        pytest.skip("NOT TESTED: limits of Slurm: needs control groups of version 1")
    opened = "; ".join(
        f"print('gpu{n}', os.path.exists('{slurm_lab.directory}/gpu{n}') and "
        f"err(lambda: open('{slurm_lab.directory}/gpu{n}')), file=out)"
        for n in range(GPUS)
    )
    code = f"""
import os, sys
sys.stdin.read()
print("taken", flush=True)
def err(call):
    try:
        return call()
    except OSError as e:
        return e.errno
out = open('/tmp/seen.part', 'w')
print(sorted(name for name in os.environ if 'SECRET' in name), file=out)
{opened}
out.close()
os.rename('/tmp/seen.part', '/tmp/seen')
if not (child := os.fork()):
    os._exit(len(bytearray(1 << 30)) and 7)
status = os.waitpid(child, 0)[1]
open('/tmp/ended.part', 'w').write(str(status))
os.rename('/tmp/ended.part', '/tmp/ended')
"""
    os.environ["A_SECRET"] = "x"
    gpu = need("node1", accelerators=1, machine=MachineWanted(None, T4))
    hold = await cluster.acquire(a_name(), [gpu])
    await cluster.start_agent(hold, "node1", python(code), b"x\n")
    seen = slurm_lab.directory / "node1.tmp" / "seen"
    await_that("the agent saw", seen.exists)
    first, second = sorted(line.split()[1] for line in seen.read_text().splitlines()[1:])
    assert (first, second) == ("1", "6"), "one is there without a driver, the other one is denied"
    assert seen.read_text().splitlines()[0] == "[]"
    ended = seen.with_name("ended")
    await_that("it took more than it may", ended.exists)
    assert int(ended.read_text()) == signal.SIGKILL


# Races with the controller's own start. That names count, not numbers: unit/test_slurm_commands.py.
@pytest.mark.soak
async def test_what_a_crash_of_the_controller_swallows_is_neither_lost_nor_doubled(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    """It gives the numbers out again: another's job of the same number is not taken for the hold."""
    slurm_lab.await_saved()
    for _ in range(5):
        hold = await cluster.acquire(a_name(), [need("node1")])
        slurm_lab.stop_controller(signal.SIGKILL)
        slurm_lab.start_controller()
        if str(hold.name) not in jobs(slurm_lab):
            break
        await cluster.give_back(hold.name)  # it had been saved already
    else:
        raise AssertionError("the controller loses nothing any more")
    # The controller has to hear of the node again, before it gives it to anybody.
    slurm_lab.await_states({"node1": ("idle", "mixed", "allocated")})
    for _ in range(10):
        # One that the controller never answers, just after its start, is asked for again.
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            others = "salloc --no-shell --immediate=3 -J others -w node1 -c1 --mem=10"
            slurm_lab.run("hub", others.split(), timeout=6)
        if f"{hold.cluster_id} others" in slurm_lab.slurm("squeue", "-h", "-o", "%i %j"):
            break
    else:
        raise AssertionError("the number is not given out again")
    with pytest.raises(ClusterUnavailable, match="any more"):
        await cluster.start_agent(hold, "node1", python(_STAYS), b"x\n")
    await cluster.give_back(hold.name)
    assert jobs(slurm_lab)["others"] == "RUNNING"
    again = await cluster.acquire(hold.name, [need("node1")])
    assert again.cluster_id != hold.cluster_id
    await cluster.start_agent(again, "node1", python(_STAYS), b"%s\n" % str(hold.name).encode())
    await looked(cluster, lambda report: report.agents.get(hold.name) == frozenset({"node1"}))


async def test_munge_that_is_down_is_only_a_pause(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    hold = await held_with_agent(cluster)
    slurm_lab.stop_munged("hub")
    try:
        calls = cluster.acquire(a_name(), [need("node2")]), cluster.give_back(hold.name)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [ClusterUnavailable] * 2
    finally:
        slurm_lab.start_munged("hub")
    # What could not be given back then is given back as soon as Slurm answers again.
    await looked(cluster, lambda report: not report.agents)
