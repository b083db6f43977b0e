"""Slurm as a cluster of the remote engine, tested on a real one: allocations, rejected requests, agents that
survive all processes on the hub (the controller's machine), and no allocations without an owner."""

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
    Allocation,
    AllocationName,
    ClusterRefused,
    ClusterReport,
    ClusterUnavailable,
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
_AGENT_START = "import pathlib, sys, time; text = sys.stdin.read().strip(); print('taken', flush=True); "
_AGENT_CODE = _AGENT_START + "pathlib.Path('/tmp/' + text).write_text(text); time.sleep(600)"


def settings_of(lab: SlurmLab, **more: object) -> SlurmSettings:
    table = {"commands": str(lab.commands), "accelerators": {"NVIDIA_TESLA_T4": "t4"}, **more}
    return parse(table)


def cluster_of(settings: SlurmSettings, service: str) -> SlurmCluster:
    return SlurmCluster(settings, service, query_interval=0.5)


@pytest.fixture
async def cluster(slurm_lab: SlurmLab) -> AsyncIterator[SlurmCluster]:
    opened = cluster_of(settings_of(slurm_lab), "test")
    await opened.start()
    yield opened
    await opened.close()
    slurm_lab.clear()


def new_name() -> AllocationName:
    return AllocationName("test", JobUid(next(_uids)), 1, 0)


def need(node: str, **more: object) -> NodeNeed:
    fields: dict[str, object] = {"replicas": 1, "vcpus": 2.0, "memory_bytes": 200 * MIB, **more}
    return NodeNeed(node=node, **fields)  # pyright: ignore[reportArgumentType]


def jobs(lab: SlurmLab) -> dict[str, str]:
    return dict(line.split() for line in lab.slurm("squeue", "-h", "-o", "%j %T").splitlines())


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


async def queried_at(cluster: SlurmCluster, condition: Callable[[ClusterReport], bool]) -> ClusterReport:
    async with asyncio.timeout(60):
        if condition(cluster.report()):
            return cluster.report()
        async for report in cluster.watch():
            if condition(report):
                return report
    raise AssertionError("the cluster was closed")


def await_that(what: str, condition: Callable[[], bool]) -> None:
    for _ in until(what):
        if condition():
            return


def submit_and_kill(lab: SlurmLab, name: AllocationName, *options: str) -> None:
    command = [str(lab.commands / "salloc"), "--job-name", str(name), "--no-shell", *options]
    salloc = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    await_that("a request waits", lambda: str(name) in jobs(lab))
    salloc.kill()
    salloc.wait()


async def await_delay(cluster: SlurmCluster, name: AllocationName) -> None:
    async for _ in poll():
        if name in cluster.report().delays:
            return


async def poll() -> AsyncIterator[None]:
    while True:
        yield
        await asyncio.sleep(0.02)


def lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def sruns_of(allocation: Allocation) -> list[int]:
    """Return the srun processes of an allocation, parents first."""
    command = ["ps", "-C", "srun", "-o", "pid=,args="]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return sorted(int(line.split()[0]) for line in printed.splitlines() if str(allocation.name) in line)


async def test_node_report_includes_resources_used_by_other_jobs(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    first, *_ = cluster.report().nodes
    assert (first.node.name, first.address) == ("node1", slurm_lab.address("node1"))
    assert first.state is NodeState.UP and not first.cause
    assert first.node.vcpus == CPUS and first.node.memory_bytes == MEMORY_MB * MIB
    assert first.node.accelerators == (("NVIDIA_TESLA_T4", GPUS),)
    others = ["--no-shell", "-J", "others", "-w", "node2", "-c", "6", "--mem=1000", "--gres=gpu:1"]
    slurm_lab.slurm("salloc", *others)
    await cluster.acquire(new_name(), [need("node2", vcpus=3.0), need("node3", vcpus=3.0)])
    theirs = OthersUse(6, 1000 * MIB, ((T4, 1),))
    # Half of an earlier query's data may be older. An identical result is not reported.
    report = await queried_at(cluster, lambda r: bool(r.agents) and r.nodes[1].node.others == theirs)
    sizes = {(own.node.vcpus, own.node.memory_bytes) for own in report.nodes[1:]}
    assert sizes == {(CPUS, MEMORY_MB * MIB)}


async def test_allocation_is_found_after_a_service_restart_and_can_be_released(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    name, needs = new_name(), [need("node1"), need("node3")]
    allocation = await cluster.acquire(name, needs)
    assert allocation == await cluster.acquire(name, needs) and allocation.nodes == ("node1", "node3")
    again = cluster_of(settings_of(slurm_lab), "test")
    await again.start()
    assert again.report().agents == {name: frozenset()}
    assert await again.acquire(name, needs) == allocation
    with pytest.raises(TimeoutError):  # Programs may run there.
        await asyncio.wait_for(cluster.acquire(name, needs), 0.001)
    assert jobs(slurm_lab) == {str(name): "RUNNING"}
    stranger = cluster_of(settings_of(slurm_lab), "other")
    await stranger.start()
    assert not stranger.report().agents
    await again.release(name)
    await again.release(name)
    await queried_at(cluster, lambda report: not report.agents)
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
        ({}, {"partition": "tiny", "node": "node2"}, "Slurm rejects"),
        ({}, {"constraint": "quick"}, "[Ii]nvalid feature"),
        ({}, {"partition": "short", "extra": ["--time=60"]}, "Partition(TimeLimit|Config)"),
        ({}, {"extra": ["--reservation=none"]}, "reservation"),
    ],
)
async def test_impossible_request_is_rejected_with_slurms_message(
    slurm_lab: SlurmLab, more: dict[str, object], table: dict[str, object], text: str
) -> None:
    node = str(table.pop("node", more.pop("node", "node1")))
    opened = cluster_of(settings_of(slurm_lab, **(table | {"partition": "main"})), "test")
    await opened.start()
    opened._routes = Routes(settings_of(slurm_lab, **table))  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ClusterRefused, match=text):
        async with asyncio.timeout(60):
            await opened.acquire(new_name(), [need(node, **more)])
    assert not jobs(slurm_lab)
    await opened.close()


async def test_pending_slurm_request_reports_its_wait_reason_and_can_be_cancelled(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    first, second = new_name(), new_name()
    await cluster.acquire(first, [need("node1", vcpus=CPUS)])
    waiting = asyncio.ensure_future(cluster.acquire(second, [need("node1")]))
    async with asyncio.timeout(60):
        await await_delay(cluster, second)
    delay = cluster.report().delays[second]
    assert delay.word in ("Resources", "Priority") and delay.position == 1
    waiting.cancel()
    await asyncio.wait([waiting])
    assert jobs(slurm_lab) == {str(first): "RUNNING"}
    # The next attempt succeeds.
    waiting = asyncio.ensure_future(cluster.acquire(second, [need("node1")]))
    await cluster.release(first)
    async with asyncio.timeout(60):
        assert (await waiting).nodes == ("node1",)


async def test_queue_position_survives_a_service_restart(slurm_lab: SlurmLab, cluster: SlurmCluster) -> None:
    """`queue = "slurm"`: the request keeps its position in Slurm's queue."""
    first, second, third = new_name(), new_name(), new_name()
    await cluster.acquire(first, [need("node1", vcpus=CPUS)])
    allocation = await cluster.acquire(second, [need("node1", vcpus=CPUS)], avoid=["node2"])
    assert allocation.nodes == ("node3",)
    both = [need("node1", vcpus=CPUS), need("node2", vcpus=CPUS)]
    waiting = asyncio.ensure_future(cluster.acquire(third, both, avoid=[]))
    async with asyncio.timeout(60):
        await await_delay(cluster, third)
    [before] = slurm_lab.slurm("squeue", "-h", "-t", "PENDING", "-o", "%i").split()
    cluster.detach()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    again = cluster_of(settings_of(slurm_lab), "test")
    await again.start()
    assert again.report().delays[third].position == 1
    waiting = asyncio.ensure_future(again.acquire(third, both, avoid=[]))
    await again.release(first)
    async with asyncio.timeout(60):
        allocation = await waiting
    assert (allocation.nodes, allocation.cluster_id) == (("node1", "node2"), before)
    await again.close()


async def test_orphaned_request_of_a_killed_salloc_is_released(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    """A killed salloc does not withdraw its request."""
    first, second = new_name(), new_name()
    await cluster.acquire(first, [need("node1", vcpus=CPUS)])
    submit_and_kill(slurm_lab, second, "--no-kill", "-w", "node1")
    # The service that made the request has ended. The next one makes the same request, and gets that
    # allocation or another one, but only one exists.
    waiting = asyncio.ensure_future(acquire_with_retries(cluster, second))
    await cluster.release(first)
    async with asyncio.timeout(60):
        allocation = await waiting
    assert jobs(slurm_lab)[str(second)] == "RUNNING"
    await cluster.release(allocation.name)


async def test_leftover_slurm_request_with_a_rejected_time_limit_is_replaced(slurm_lab: SlurmLab) -> None:
    name = new_name()
    submit_and_kill(slurm_lab, name, "--partition=short", "--time=1500")
    opened = cluster_of(settings_of(slurm_lab, partition="short"), "test")
    await opened.start()
    await opened.acquire(name, [need("node1", seconds=90)])
    left = jobs(slurm_lab)
    await opened.close()
    slurm_lab.clear()
    assert left == {str(name): "RUNNING"}


async def acquire_with_retries(cluster: SlurmCluster, name: AllocationName) -> Allocation:
    """Retry like the engine."""
    while True:
        try:
            return await cluster.acquire(name, [need("node1")])
        except ClusterUnavailable:
            await asyncio.sleep(0.1)


async def allocation_with_agent(cluster: SlurmCluster, code: str = _AGENT_CODE) -> Allocation:
    allocation = await cluster.acquire(new_name(), [need("node1")])
    await cluster.start_agent(allocation, "node1", python(code), b"%s\n" % str(allocation.name).encode())
    return allocation


def agents(lab: SlurmLab, node: str, allocation: Allocation) -> list[int]:
    """Return the processes of an agent that has read its startup data."""
    for _ in until(f"the agent of {allocation.name}"):
        if (lab.directory / f"{node}.tmp" / str(allocation.name)).exists():
            break
    return [pid for pid in lab.processes(node) if _is_agent(pid)]


def _is_agent(pid: int) -> bool:
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return argv[0] == os.fsencode(sys.executable) and b"-S" in argv


async def test_agent_survives_a_kill_of_srun_and_restarts_of_the_slurm_daemons(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    allocation = await allocation_with_agent(cluster)
    (agent,) = agents(slurm_lab, "node1", allocation)
    for pid in sruns_of(allocation):
        os.kill(pid, signal.SIGKILL)
    slurm_lab.stop_controller()
    slurm_lab.start_controller()
    slurm_lab.stop_slurmd("node1")
    slurm_lab.start_slurmd("node1")
    assert lives(agent)
    await queried_at(cluster, lambda report: report.agents.get(allocation.name) == frozenset({"node1"}))
    await cluster.release(allocation.name)
    await_that("the agent ended", lambda: not lives(agent))
    await queried_at(cluster, lambda report: not report.agents)


async def test_suspension_of_an_allocation_is_reported_until_slurm_resumes_the_allocation(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    allocation = await allocation_with_agent(cluster)
    assert not cluster.report().suspensions
    slurm_lab.slurm("scontrol", "suspend", allocation.cluster_id)
    why = "its allocation is suspended in Slurm (SUSPENDED)"
    async with asyncio.timeout(60):
        async for _ in poll():
            if cluster.report().suspensions:
                break
    assert cluster.report().suspensions == {allocation.name: why}
    assert cluster.report().agents == {allocation.name: frozenset({"node1"})}, "it has not ended"
    slurm_lab.slurm("scontrol", "resume", allocation.cluster_id)
    async with asyncio.timeout(60):
        async for _ in poll():
            if not cluster.report().suspensions:
                break
    # A suspended allocation can be released.
    slurm_lab.slurm("scontrol", "suspend", allocation.cluster_id)
    await cluster.release(allocation.name)
    slurm_lab.await_idle()


async def test_allocation_end_is_reported_with_its_cause_after_the_last_process_has_ended(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    """Before, Slurm only reports that it is ending. This agent ends slowly."""
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    allocation = await allocation_with_agent(cluster, code=deaf + _AGENT_CODE)
    agents(slurm_lab, "node1", allocation)
    slurm_lab.slurm("scancel", allocation.cluster_id)
    calls = 0
    async for _ in poll():
        try:
            end = await cluster.allocation_end(allocation.name)
        except ClusterUnavailable as failure:
            assert "is still ending" in str(failure)
            calls += 1
            continue
        assert end is not None and end.loss is Cause.ALLOCATION_REVOKED
        break
    assert calls


async def test_released_node_is_available_at_once(
    slurm_lab: SlurmLab, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm lends no resources of a node while a step of an ended job ends there. So the service ends the
    step before the job."""
    monkeypatch.setattr(client, "_WITHDRAW_TIMEOUT", 60.0)
    slow = "import signal; signal.signal(15, lambda *_: (time.sleep(0.5), sys.exit())); "
    allocation = await allocation_with_agent(cluster, code=slow + _AGENT_CODE)
    (agent,) = agents(slurm_lab, "node1", allocation)
    await cluster.release(allocation.name)
    assert not lives(agent)


async def test_failed_agent_start_is_reported_with_the_node_and_the_cause(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    allocation = await cluster.acquire(new_name(), [need("node1")])
    with pytest.raises(ClusterUnavailable, match="the command no-such-python does not exist on node1"):
        await cluster.start_agent(allocation, "node1", ["no-such-python"], b"")
    with pytest.raises(ClusterUnavailable, match="node2"):
        await cluster.start_agent(allocation, "node2", python("pass"), b"")
    with pytest.raises(ClusterUnavailable, match=f"exit code 1.*errors/{allocation.name} contains"):
        await cluster.start_agent(allocation, "node1", python("sys.exit("), b"x" * 300_000)
    with pytest.raises(ClusterUnavailable):
        await cluster.start_agent(allocation, "node1", python("import no_such_module"), b"x\n")
    kept = slurm_lab.directory / "node1.tmp" / f"trainshed-{os.geteuid()}.errors" / str(allocation.name)
    await_that("error output", lambda: kept.exists() and "no_such_module" in kept.read_text())
    await queried_at(cluster, lambda report: report.agents.get(allocation.name) == frozenset())


async def test_agent_is_limited_to_its_allocations_devices_and_memory(
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
    allocation = await cluster.acquire(new_name(), [gpu])
    await cluster.start_agent(allocation, "node1", python(code), b"x\n")
    seen = slurm_lab.directory / "node1.tmp" / "seen"
    await_that("the agent saw", seen.exists)
    first, second = sorted(line.split()[1] for line in seen.read_text().splitlines()[1:])
    assert (first, second) == ("1", "6"), "one has no driver, and access to the other is denied"
    assert seen.read_text().splitlines()[0] == "[]"
    ended = seen.with_name("ended")
    await_that("it took more than it may", ended.exists)
    assert int(ended.read_text()) == signal.SIGKILL


# It races with the start of the controller. unit/test_commands.py tests that names identify allocations.
@pytest.mark.soak
async def test_controller_crash_neither_loses_nor_duplicates_allocations(
    slurm_lab: SlurmLab, cluster: SlurmCluster
) -> None:
    """The controller reuses ids: a job of another user with the same id does not count as the allocation."""
    slurm_lab.await_saved()
    for _ in range(5):
        allocation = await cluster.acquire(new_name(), [need("node1")])
        slurm_lab.stop_controller(signal.SIGKILL)
        slurm_lab.start_controller()
        if str(allocation.name) not in jobs(slurm_lab):
            break
        await cluster.release(allocation.name)  # it was already saved
    else:
        raise AssertionError("the controller loses nothing any more")
    # The controller grants a node only after the node has responded.
    slurm_lab.await_states({"node1": ("idle", "mixed", "allocated")})
    for _ in range(10):
        # The controller may never answer a request just after its start, which is then repeated.
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            others = "salloc --no-shell --immediate=3 -J others -w node1 -c1 --mem=10"
            slurm_lab.run("hub", others.split(), timeout=6)
        if f"{allocation.cluster_id} others" in slurm_lab.slurm("squeue", "-h", "-o", "%i %j"):
            break
    else:
        raise AssertionError("the number is not given out again")
    with pytest.raises(ClusterUnavailable, match="no longer"):
        await cluster.start_agent(allocation, "node1", python(_AGENT_CODE), b"x\n")
    await cluster.release(allocation.name)
    assert jobs(slurm_lab)["others"] == "RUNNING"
    again = await cluster.acquire(allocation.name, [need("node1")])
    assert again.cluster_id != allocation.cluster_id
    await cluster.start_agent(again, "node1", python(_AGENT_CODE), b"%s\n" % str(allocation.name).encode())
    await queried_at(cluster, lambda report: report.agents.get(allocation.name) == frozenset({"node1"}))


async def test_requests_continue_after_a_munge_outage(slurm_lab: SlurmLab, cluster: SlurmCluster) -> None:
    allocation = await allocation_with_agent(cluster)
    slurm_lab.stop_munged("hub")
    try:
        calls = cluster.acquire(new_name(), [need("node2")]), cluster.release(allocation.name)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [ClusterUnavailable] * 2
    finally:
        slurm_lab.start_munged("hub")
    # The pending release is carried out as soon as Slurm responds again.
    await queried_at(cluster, lambda report: not report.agents)
