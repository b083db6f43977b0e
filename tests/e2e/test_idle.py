"""What an idle service holds: few pages of its own, and nothing of what only some requests need
(docs/benchmarks.md)."""

import subprocess
import sys
from pathlib import Path

from tests.e2e.processes import children, command_line
from tests.e2e.running import running

MOST_MEGABYTES = 66
"""Of the service and its bucket process together, before the first job: it was 54 when this was written, 64
before the settings and our own API had types, which take one, and 69 as long as the bucket process carried
all that the service loads."""

BEFORE_THE_FORK = "import trainshed.serve.up, trainshed.buckets.process, trainshed.serve.children"
ALL = f"{BEFORE_THE_FORK}, trainshed.serve.app"


def loaded_by(statement: str) -> set[str]:
    """The modules in an interpreter that has run a statement."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(shown.stdout.split())


def own_megabytes(pid: int) -> float:
    """Memory that is no file's, shared pages by their share: the same however many others use the same
    libraries."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss_Anon:")).split()[1]) / 1024


def test_the_service_and_its_buckets_stay_small(data: Path) -> None:
    with running(data, forked=False) as service:
        (buckets,) = (pid for pid in children(service.pid) if "up" in command_line(pid).split())
        megabytes = own_megabytes(service.pid) + own_megabytes(buckets)
    assert megabytes <= MOST_MEGABYTES


def test_the_bucket_process_carries_nothing_of_the_rest() -> None:
    """It is forked from a service that has loaded no more than this."""
    rooms = ("controller", "scheduler", "runtimes", "studies", "store", "api", "wire")
    loaded = loaded_by(BEFORE_THE_FORK)
    assert "trainshed.buckets.process" in loaded
    assert not loaded & {f"trainshed.{room}" for room in rooms}


def test_what_only_some_requests_need_is_loaded_by_them() -> None:
    rare = {
        *("argparse", "email.policy", "urllib.request", "yaml"),
        *("cryptography", "grpc", "numpy", "obstore", "scipy"),
        *("google.protobuf.descriptor_pb2", "trainshed.replica.supervisor.executor"),
    }
    loaded = loaded_by(ALL)
    assert "trainshed.controller.controller" in loaded
    assert not loaded & rare
