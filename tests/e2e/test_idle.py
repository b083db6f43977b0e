"""Memory of an idle service (docs/benchmarks.md)."""

from pathlib import Path

from tests.e2e.processes import children, command_line, wait_until_gone
from tests.e2e.running import running

MAX_SERVICE_MEGABYTES = 70
"""Of the service, before the first job."""
MAX_BUCKET_MEGABYTES = 30
"""Of the bucket process, which starts with the first request for an object."""


def own_megabytes(pid: int) -> float:
    """Return anonymous memory, with shared pages in proportion: independent of other users of the same
    libraries.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss_Anon:")).split()[1]) / 1024


def test_idle_service_stays_within_its_memory_budget(data: Path) -> None:
    with running(data, forked=False) as service:
        # Interpreters run once when it starts; no other process remains.
        wait_until_gone(pid for pid in children(service.pid) if "zygote" not in command_line(pid))
        megabytes = own_megabytes(service.pid)
        assert service.call("GET", "/storage/v1/b/trainshed")["name"] == "trainshed"
        (buckets,) = (pid for pid in children(service.pid) if "trainshed.buckets" in command_line(pid))
        for_buckets = own_megabytes(buckets)
    assert megabytes <= MAX_SERVICE_MEGABYTES
    assert for_buckets <= MAX_BUCKET_MEGABYTES
