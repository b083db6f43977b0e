"""What an idle service holds (docs/benchmarks.md)."""

from pathlib import Path

from tests.e2e.processes import children, command_line, wait_until_gone
from tests.e2e.running import running

MOST_MEGABYTES = 70
"""Of the service, before the first job."""
MOST_FOR_BUCKETS = 30
"""Of the bucket process, which is there once somebody has asked for an object."""


def own_megabytes(pid: int) -> float:
    """Memory that is no file's, shared pages by their share: the same however many others use the same
    libraries."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss_Anon:")).split()[1]) / 1024


def test_the_service_and_its_buckets_stay_small(data: Path) -> None:
    with running(data, forked=False) as service:
        # Interpreters are asked what they are as it starts; nothing else stays.
        wait_until_gone(pid for pid in children(service.pid) if "zygote" not in command_line(pid))
        megabytes = own_megabytes(service.pid)
        assert service.call("GET", "/storage/v1/b/trainshed")["name"] == "trainshed"
        (buckets,) = (
            pid for pid in children(service.pid) if "trainshed.buckets" in command_line(pid)
        )
        for_buckets = own_megabytes(buckets)
    assert megabytes <= MOST_MEGABYTES
    assert for_buckets <= MOST_FOR_BUCKETS
