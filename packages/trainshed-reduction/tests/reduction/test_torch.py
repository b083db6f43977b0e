"""Tests of unchanged PyTorch programs: sums by reducers are exact, and all other operations are native."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.fork_server import ForkServer
from tests.reduction.programs import environment, run_one, run_ranks, with_reducers
from tests.reduction.reducers import Reducers
from trainshed.runtimes import reduction
from trainshed_reduction import variables

FALLBACK = "native all-reduce is used: "
NO_GPU = 77
NEEDS_GPU = pytest.mark.skipif(not list(Path("/dev").glob("nvidia[0-9]*")), reason="there is no GPU here")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("site")
    reduction.unpack(path)
    return path


def test_all_pytorch_collectives_succeed_and_their_sums_are_exact(
    torch_python: Path, torch_fork_server: ForkServer, site: Path, tmp_path: Path
) -> None:
    """spec/reduction#exactness: Types are fp32, fp64, halves and integers. Sums are rank-ordered, also
    asynchronously, in subgroups and in named groups."""
    report = tmp_path / "report"
    with Reducers(2) as reducers:
        environ = with_reducers(
            reducers.addresses,
            TEST_STORE=f"file://{tmp_path}/store-",
            # Most sums of this test are small.
            **{variables.MIN_BYTES: "65536"},
            **{variables.REPORT_FILE: str(report)},
        )
        surroundings = environment(site, **environ)
        ended = run_ranks(torch_python, "collectives.py", 3, surroundings, fork_server=torch_fork_server)
    assert [rank.status for rank in ended] == [0, 0, 0]
    wanted = ["types", "average", "async", "futures", "native", "others", "functional", "subgroups"]
    wanted += ["threads", "forks", "again"]
    for rank in ended:
        assert [line.split()[1] for line in rank.output.splitlines()] == wanted
    # The service adds reports to the log, so the package must not log them as well.
    assert not any("2 reducers" in line for rank in ended for line in rank.package_lines)
    notes = {note["id"]: note["text"] for note in json.loads(report.read_text())["notes"]}
    assert "2 reducers" in notes["mode"]
    assert "idle" not in notes


def test_ddp_training_equals_training_without_reducers(
    torch_python: Path, torch_fork_server: ForkServer, site: Path, tmp_path: Path
) -> None:
    """spec/reduction#exactness: In all modes, DDP has gloo's losses, and the same parameters on all ranks."""
    with Reducers(2) as reducers:
        environ = with_reducers(
            reducers.addresses,
            TEST_STORE=f"file://{tmp_path}/store",
            # The buckets of DDP are small in this test.
            **{variables.MIN_BYTES: "65536"},
        )
        surroundings = environment(site, **environ)
        ended = run_ranks(torch_python, "ddp.py", 3, surroundings, fork_server=torch_fork_server)
    assert [rank.status for rank in ended] == [0, 0, 0]
    lines = ended[0].output.splitlines()
    half = len(lines) // 2
    assert (lines[0], lines[half]) == ("ReducingGroup", "ProcessGroup")
    assert lines[1:half] == lines[half + 1 :]
    assert half == 7


def test_ranks_on_the_same_node_sum_their_tensors_before_sending_to_reducers(
    torch_python: Path, torch_fork_server: ForkServer, site: Path
) -> None:
    """spec/reduction#exactness: With several ranks per node, each part's sum leaves a node once. All ranks
    get the same bits. The first rank starts as in a job."""
    with Reducers(2) as reducers:
        environ = with_reducers(reducers.addresses, **{variables.MIN_BYTES: "65536"})
        surroundings = environment(site, **environ)
        ended = run_ranks(torch_python, "nodes.py", 4, surroundings, torch_fork_server, started=1)
    assert [(rank.status, rank.output) for rank in ended] == [(0, "ok ReducingGroup\n")] * 4
    assert "each of 2 nodes" in ended[0].package_lines[0]


def test_group_uses_native_all_reduce_if_a_rank_lacks_the_plug_in(
    torch_python: Path, torch_fork_server: ForkServer, site: Path
) -> None:
    """spec/reduction#security: All ranks use the native all-reduce, and the reason is reported once.
    `test_sums` covers unreachable reducers and rejected workers."""
    with Reducers(1) as reducers:
        environ = with_reducers(reducers.addresses, TEST_AUTOLOAD="0", **{variables.START_SECONDS: "4"})
        surroundings = environment(site, **environ)
        ended = run_ranks(torch_python, "fallback.py", 2, surroundings, fork_server=torch_fork_server)
    assert [(rank.status, rank.output) for rank in ended] == [(0, "ok\n")] * 2
    (line,) = ended[0].package_lines
    assert FALLBACK in line and "rank 1" in line
    assert not ended[1].package_lines


def test_import_of_torch_succeeds_if_the_reduction_package_is_unusable(
    torch_python: Path, torch_fork_server: ForkServer, site: Path, tmp_path: Path
) -> None:
    """spec/reduction#frameworks: Environment, installation or PyTorch may be unusable. Idle reducers are
    reported."""
    broken = tmp_path / "broken"
    shutil.copytree(site, broken)
    (broken / "trainshed_reduction" / "client" / "communicator.py").unlink()
    real = with_reducers((("127.0.0.1", 1),))
    garbage = {variables.REDUCERS: "\x01:x,,", variables.CHUNK_BYTES: "-", variables.TOKEN: "t"}
    with ThreadPoolExecutor() as pool:
        cases = [
            (["imports.py", "changed"], environment(site), torch_fork_server),
            (["imports.py"], environment(site, **garbage), torch_fork_server),
            (["imports.py"], environment(broken, **real), None),
            (["imports.py"], environment(site, **real), torch_fork_server),
        ]
        runs = [pool.submit(run_one, torch_python, *case) for case in cases]
        changed, senseless, half, idle = (run.result() for run in runs)
    assert [program.status for program in (changed, senseless, half, idle)] == [0] * 4
    for ended, cause in (
        (changed, "process groups"),
        (senseless, variables.CHUNK_BYTES),
        (half, "trainshed_reduction.client.communicator"),
    ):
        assert len(ended.package_lines) == 1
        assert cause in ended.package_lines[0] and "native all-reduce is used" in ended.package_lines[0]
    assert len(idle.package_lines) == 1
    assert "created no process group" in idle.package_lines[0]


def test_pinned_memory_of_gpu_transfers_is_released_even_after_a_failure(
    torch_python: Path, torch_fork_server: ForkServer, site: Path
) -> None:
    """spec/reduction#exactness: They return even after a failure."""
    ended = run_one(torch_python, ["staged.py"], environment(site), torch_fork_server)
    assert (ended.status, ended.output) == (0, "ok\n")


@NEEDS_GPU
@pytest.mark.gpu
def test_sums_of_gpu_tensors_are_exact(torch_python: Path, site: Path) -> None:
    """spec/reduction#exactness: GPU tensors are copied through pinned memory, in the order of their
    streams."""
    with Reducers(2) as reducers:
        ended = run_ranks(torch_python, "gpu.py", 2, environment(site, **with_reducers(reducers.addresses)))
    if any(rank.status == NO_GPU for rank in ended):
        pytest.skip("PyTorch sees no GPU here")
    wanted = "".join(f"ok {name}\n" for name in ("exact", "order", "futures", "overlap", "ddp"))
    assert [(rank.status, rank.output) for rank in ended] == [(0, wanted)] * 2


@NEEDS_GPU
@pytest.mark.gpu
def test_padded_gpu_tensor_is_not_freed_before_another_cuda_stream_has_read_its_data(
    torch_python: Path, site: Path
) -> None:
    """spec/reduction#exactness: A padded tensor is read on another stream than the stream that created it."""
    ended = run_one(torch_python, ["padded.py"], environment(site))
    if ended.status == NO_GPU:
        pytest.skip("PyTorch sees no GPU here")
    assert (ended.status, ended.output) == (0, "ok\n")
