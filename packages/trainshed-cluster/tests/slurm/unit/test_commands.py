"""Arguments and output of Slurm's commands: `trainshed_cluster.slurm.commands` and `look`, with recorded
output of Slurm 22.05."""

import time
from collections.abc import Callable

import pytest

from tests.slurm.unit.test_queries import GOLDEN, RECORDED
from tests.slurm.unit.test_queries import parse_recorded as read
from trainshed.core.capacity import MachineWanted, OthersUse
from trainshed.core.names import JobUid
from trainshed.engines.port import NodeState
from trainshed_cluster.remote.cluster import AllocationName
from trainshed_cluster.slurm import commands, records
from trainshed_cluster.slurm.commands import JobRequest
from trainshed_cluster.slurm.queries import list_jobs, list_nodes, list_steps
from trainshed_cluster.slurm.records import Gres, Job, NodeLine
from trainshed_cluster.slurm.routes import Routes, has_features
from trainshed_cluster.slurm.settings import MachineRoute, SlurmSettings
from trainshed_cluster.slurm.snapshot import Snapshot, compile_snapshot, own_jobs

GRANTED = AllocationName("lab", JobUid(12), 1, 0)
WAITING = AllocationName("lab", JobUid(13), 1, 0)
GIB = 1 << 30
SETTINGS = SlurmSettings(accelerators={"NVIDIA_TESLA_T4": "t4"})


def of_root(uid: int) -> str | None:
    return "" if uid == 0 else None


def recorded_output(name: str) -> str:
    return (GOLDEN / f"{name}.txt").read_text()


def own(
    squeue: str, service: str = "lab", name_of: Callable[[int], str | None] = of_root
) -> tuple[tuple[AllocationName, Job], ...]:
    return own_jobs(read(list_jobs([0]), squeue), service, name_of)


def take_snapshot(
    squeue: str = "",
    steps: str = "",
    sinfo: str = "",
    service: str = "lab",
    settings: SlurmSettings = SETTINGS,
    now: float = 1_795_304_650,
) -> Snapshot:
    return compile_snapshot(
        0.0,
        now=now,
        pending=(),
        jobs=own(squeue or recorded_output("squeue"), service),
        steps=read(list_steps([0]), steps or recorded_output("squeue_steps")),
        nodes=read(list_nodes(None), sinfo or recorded_output("sinfo")),
        routes=Routes(settings),
        known={},
    )


def test_allocation_is_too_old_for_reuse_after_half_of_its_extra_time_limit() -> None:
    begun = take_snapshot().jobs[GRANTED].starts or 0
    assert not take_snapshot(now=begun + 43_200).report.old
    assert take_snapshot(now=begun + 43_201).report.old == {GRANTED}


def test_recorded_output_of_a_slurm_cluster_is_parsed() -> None:
    seen = take_snapshot()
    assert seen.report.agents == {GRANTED: frozenset({"node2"})}
    assert seen.jobs[GRANTED].nodes == ("node1", "node2")
    assert seen.jobs[WAITING].reason == "Resources" and seen.jobs[WAITING].is_pending
    assert [*seen.report.delays] == [WAITING]
    # Slurm's estimate is a year ahead, because no job has a time limit.
    assert seen.report.delays[WAITING].expected is None
    first, second, third = seen.report.nodes
    mib = 1 << 20
    # Resources of the allocation belong to this service, and resources of another user's job do not.
    assert (first.node.vcpus, first.node.memory_bytes) == (16, 6000 * mib)
    assert first.node.accelerators == (("NVIDIA_TESLA_T4", 2),)
    assert first.node.others == OthersUse()
    assert (second.node.vcpus, second.node.memory_bytes) == (16, 6000 * mib)
    assert second.node.accelerators == (("NVIDIA_TESLA_T4", 2),)
    assert second.node.others == OthersUse(4, 1000 * mib, (("NVIDIA_TESLA_T4", 1),))
    assert (third.state, third.cause) == (NodeState.DRAINING, "a fan | is loud")


def test_allocations_of_another_service_are_ignored() -> None:
    seen = take_snapshot(service="other")
    assert not seen.jobs and not seen.report.agents
    node = seen.report.nodes[0].node
    assert (node.vcpus, node.others.vcpus) == (16, 2)


def test_known_slurm_job_takes_precedence_over_a_slurm_job_with_the_same_name() -> None:
    line = recorded_output("squeue").splitlines()[1]
    twice = f"{line}\n{line.replace('25', '31', 1)}\n"
    jobs = own(twice)
    routes = Routes(SlurmSettings())
    for known, kept, other in (({}, 25, 31), ({GRANTED: 31}, 31, 25)):
        seen = compile_snapshot(
            0.0, now=0.0, pending=(), jobs=jobs, steps=(), nodes=(), routes=routes, known=known
        )
        assert seen.jobs[GRANTED].id == kept
        assert [job.id for _, job in seen.duplicates] == [other]


def test_slurm_job_of_another_user_with_the_name_of_an_allocation_is_ignored() -> None:
    """Each user of jobs has separate allocations."""
    line = recorded_output("squeue").splitlines()[1]
    parts = line.split(RECORDED)
    parts[0], parts[-3] = "31", "1001"
    both = f"{line}\n{RECORDED.join(parts)}\n"
    assert [job.id for _, job in own(both)] == [25]
    seen = own(both, name_of={0: "", 1001: "vision"}.get)
    assert seen[0][0] == GRANTED
    assert seen[1][0] == AllocationName("lab", JobUid(12), 1, 0, "vision") != GRANTED
    assert str(seen[1][0]) == str(GRANTED)


def test_report_of_1000_nodes_is_parsed_within_one_second() -> None:
    line = recorded_output("sinfo").splitlines()[0]
    sinfo = "\n".join(line.replace("node1", f"node{n}") for n in range(1000))
    begun = time.thread_time()
    assert len(take_snapshot(sinfo=sinfo).report.nodes) == 1000
    spent = time.thread_time() - begun
    assert spent < 1, f"{spent:.3f} s"


@pytest.mark.parametrize(
    ("text", "state", "cause"),
    [
        ("idle", NodeState.UP, None),
        ("MIXED", NodeState.UP, None),
        ("allocated+completing", NodeState.UP, None),
        ("idle+planned", NodeState.UP, None),
        ("IDLE+CLOUD+POWERED_DOWN", NodeState.UP, None),
        ("idle*", NodeState.GONE, "not responding"),
        ("idle+not_responding", NodeState.GONE, "not responding"),
        ("DOWN*+DRAIN", NodeState.GONE, "down and drain and not_responding"),
        ("unknown", NodeState.GONE, "unknown"),
        ("", NodeState.GONE, ""),
        ("mixed+drain", NodeState.DRAINING, "mixed and drain"),
        ("IDLE+MAINT+RESERVED", NodeState.DRAINING, "is in a maintenance reservation"),
        ("mixed+reboot_requested", NodeState.DRAINING, "is waiting for a reboot"),
        ("idle+reserved", NodeState.DRAINING, "is reserved"),
    ],
)
def test_slurm_node_state_is_parsed_as_a_node_state_and_its_cause(
    text: str, state: NodeState, cause: str | None
) -> None:
    line = NodeLine("n", records.parse_states(text), 1, 0, 1, 0, (), (), "", None)
    assert records.node_state(line) == (state, cause)


@pytest.mark.parametrize(
    ("text", "awaited"),
    [("mixed*", True), ("idle+not_responding", True), ("DOWN*", False), ("down", False), ("", False)],
)
def test_unresponsive_slurm_node_is_awaited_until_slurm_marks_the_node_as_down(
    text: str, awaited: bool
) -> None:
    line = NodeLine("n", records.parse_states(text), 1, 0, 1, 0, (), (), "", None)
    assert records.is_awaited(line) is awaited


def test_reserved_node_is_up_for_requests_in_its_reservation() -> None:
    line = NodeLine("n", records.parse_states("idle+reserved"), 1, 0, 1, 0, (), (), "", None)
    assert records.node_state(line, reservation=True) == (NodeState.UP, None)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("gpu:a100:4(S:0-1)", [Gres("gpu", "a100", 4)]),
        ("gpu:t4:1(IDX:0),gpu:2,x:8(S:0)", [Gres("gpu", "t4", 1), Gres("gpu", "", 2), Gres("x", "", 8)]),
        ("gres:gpu:t4:1", [Gres("gpu", "t4", 1)]),
        ("gres/gpu:t4=1,gres/gpu=3", [Gres("gpu", "t4", 1), Gres("gpu", "", 3)]),
        ("bandwidth:2K", [Gres("bandwidth", "", 2048)]),
        ("gpu:t4", [Gres("gpu", "t4", 1)]),
        ("gpu:a100_3g.20gb:2(S:0)", [Gres("gpu", "a100_3g.20gb", 2)]),
        ("(null)", []),
        ("N/A", []),
        ("", []),
    ],
)  # fmt: skip
def test_gres_text_of_slurm_is_parsed_into_device_names_types_and_counts(text: str, seen: list[Gres]) -> None:
    assert list(records.parse_gres(text)) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("500M", 500 << 20),
        ("4G", 4 * GIB),
        ("1.5G", 3 * GIB // 2),
        ("2000", 2000 << 20),
        ("0", 0),
        ("N/A", 0),
    ],
)
def test_memory_text_of_slurm_is_parsed_into_a_number(text: str, seen: int) -> None:
    assert records.parse_memory(text) == seen


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("node1", ["node1"]),
        ("node[1-3,07],login", ["node1", "node2", "node3", "node07", "login"]),
        ("r[1-2]n[08-10]", ["r1n08", "r1n09", "r1n10", "r2n08", "r2n09", "r2n10"]),
        ("gpu[1]-a,x", ["gpu1-a", "x"]),
        ("(null)", []),
    ],
)
def test_compressed_node_list_is_expanded_into_node_names(text: str, seen: list[str]) -> None:
    assert list(records.expand_hosts(text)) == seen


@pytest.mark.parametrize("text", ["a[1-", "a]1[", "a[x-y]", "a[1-9999999]", "a[0-999]b[0-999]"])
def test_invalid_node_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"list of nodes|too many nodes"):
        records.expand_hosts(text)


def test_salloc_arguments_contain_all_fields_of_the_allocation_request() -> None:
    ask = JobRequest(
        "trainshed-lab-1-1-0",
        ("a", "b"),
        cpus=4,
        memory_bytes=GIB + 1,
        gres=Gres("gpu", "t4", 2),
        qos="high",
        seconds=3601,
        extra=("--time=60",),
    )
    assert commands.allocate(ask) == [
        "salloc",
        "--no-shell",
        "--no-kill",
        "--job-name=trainshed-lab-1-1-0",
        "--comment=trainshed-lab-1-1-0",
        "--nodes=2",
        "--nodelist=a,b",
        "--ntasks-per-node=1",
        "--cpus-per-task=4",
        "--mem=1025M",
        "--gres=gpu:t4:2",
        "--qos=high",
        "--time=61",
        "--time=60",
    ]


def test_step_gets_no_secret_as_argument_or_variable() -> None:
    argv = commands.run_agent(
        7, "a", "name", ["python3"], path="/bin", errors="/tmp/x.errors/name", gres=None
    )
    assert "--export=NONE" in argv and argv[-2:] == ["/tmp/x.errors/name", "python3"]


def test_slurm_variables_of_the_caller_are_removed_except_slurm_conf() -> None:
    ambient = {"SQUEUE_FORMAT": "%i", "SLURM_JOB_ID": "3", "SLURM_CONF": "/etc/x", "PATH": "/bin"}
    expected = {"SLURM_CONF": "/etc/x", "PATH": "/bin", "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    assert commands.environment(ambient) == expected


@pytest.mark.parametrize(
    ("refusal", "refused"),
    [
        ("Requested node configuration is not available", True),
        ("Invalid account or account/partition combination specified", True),
        ("Unable to contact slurm controller (connect failure)", False),
        ("Required node not available (down, drained or reserved)", False),
        ("Job allocation 7 has been revoked.", False),
    ],
)  # fmt: skip
def test_permanent_salloc_errors_are_recognized(refusal: str, refused: bool) -> None:
    refusal = f"salloc: error: Job submit/allocate failed: {refusal}"
    assert commands.is_permanent_error(refusal) is refused
    assert not commands.error_text(refusal).startswith(("salloc", "error"))


MACHINES = SlurmSettings(
    qos="low",
    accelerators={"NVIDIA_TESLA_T4": "t4"},
    machines=[
        MachineRoute(types=["a2-*", "n1-highmem-*"], partition="tiny", account="lab"),
        MachineRoute(accelerators=["NVIDIA_TESLA_T4"], partition="hi,short", constraint="new", qos=""),
        MachineRoute(accelerators=["NVIDIA_L4"], partition="hi", gres="shard:l4"),
    ],
)


@pytest.mark.parametrize(
    ("machine", "partition", "account", "qos"),
    [
        (MachineWanted("n1-highmem-8"), "tiny", "lab", "low"),
        (MachineWanted("n1-highmem-8", "NVIDIA_TESLA_T4"), "tiny", "lab", "low"),
        (MachineWanted("n1-standard-4", "NVIDIA_TESLA_T4"), "hi,short", "", ""),
        (MachineWanted("n1-standard-4"), "", "", "low"),
        (MachineWanted(), "", "", "low"),
    ],
)
def test_first_machines_table_that_matches_a_machine_type_applies(
    machine: MachineWanted, partition: str, account: str, qos: str
) -> None:
    route = Routes(MACHINES).of(machine)
    assert (route.partition, route.account, route.qos) == (partition, account, qos)


def test_node_accepts_only_machine_types_that_the_settings_assign_to_the_node() -> None:
    first, second, _ = take_snapshot(settings=MACHINES).report.nodes
    highmem, gpu = MachineWanted("n1-highmem-8"), MachineWanted("n1-standard-4", "NVIDIA_TESLA_T4")
    assert first.node.accepts.allows(highmem) and not second.node.accepts.allows(highmem)
    # node1 is in the partitions, but lacks the feature.
    assert second.node.accepts.allows(gpu) and not first.node.accepts.allows(gpu)
    assert first.node.accepts.allows(MachineWanted("n1-standard-4"))
    assert first.node.accepts.destination(gpu) == "partitions hi, short with features new"
    # No node of its route has the devices of that type.
    assert not second.node.accepts.allows(MachineWanted("g2-standard-4", "NVIDIA_L4"))
    assert Routes(MACHINES).partitions is None


def test_only_nodes_of_the_configured_partition_and_nodes_with_jobs_are_reported() -> None:
    only = SlurmSettings(partition="tiny")
    assert [report.node.name for report in take_snapshot(settings=only).report.nodes] == ["node1", "node2"]
    assert not take_snapshot(settings=only).report.nodes[1].node.accepts.open, "only nodes with jobs remain"
    assert Routes(only).partitions == "tiny"


@pytest.mark.parametrize(
    ("constraint", "has"),
    [
        ("", True),
        ("new", True),
        ("new&big", False),
        ("new|big", True),
        ("[rack1|rack2]", True),
        ("big", False),
    ],
)
def test_slurm_constraint_is_compared_with_the_features_of_a_node(constraint: str, has: bool) -> None:
    assert has_features(constraint, {"new"}) is has
