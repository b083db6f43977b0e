"""What an idle service holds: few pages of its own, and nothing of what only some requests need
(docs/benchmarks.md)."""

import os
import subprocess
import sys
from pathlib import Path

from tests.e2e.processes import children, command_line
from tests.e2e.running import environment, running

MOST_MEGABYTES = 45
"""Of the service, before the first job. It is about 36 when it begins to serve, 40 a second later, and 2 more
before modules are kept compiled."""
MOST_FOR_BUCKETS = 22
"""Of the bucket process, which is there once somebody has asked for an object. It is about 19."""

RARE = {
    *("argparse", "csv", "difflib", "email.message", "email.parser", "http.client", "tomllib"),
    *("importlib.metadata", "importlib.resources", "urllib.request", "yaml", "zipfile"),
    *("trainshed.console.application", "trainshed.core.progress.lines", "re2"),
    *("trainshed.datasets.step", "trainshed.datasets.storage"),
    *("multiprocessing", "uvicorn.main", "uvicorn.supervisors"),
    *("cryptography", "google.protobuf.descriptor_pb2", "grpc", "numpy", "obstore", "scipy"),
}
"""What only some requests need, or nobody."""
ALL = "import trainshed.serve.up, trainshed.serve.service"


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
        begun = [command_line(pid) for pid in children(service.pid)]
        assert [line for line in begun if "zygote" not in line] == []
        megabytes = own_megabytes(service.pid)
        assert service.call("GET", "/storage/v1/b/trainshed")["name"] == "trainshed"
        (buckets,) = (
            pid for pid in children(service.pid) if "trainshed.buckets" in command_line(pid)
        )
        for_buckets = own_megabytes(buckets)
    assert megabytes <= MOST_MEGABYTES
    assert for_buckets <= MOST_FOR_BUCKETS


def test_the_bucket_process_carries_nothing_of_the_rest() -> None:
    rooms = ("controller", "scheduler", "runtimes", "studies", "store", "api", "wire", "serve")
    loaded = loaded_by("import trainshed.buckets.process")
    assert "trainshed.buckets.process" in loaded
    assert not loaded & {f"trainshed.{room}" for room in rooms}
    assert not loaded & {"multiprocessing", "uvicorn.main", "uvicorn.supervisors"}


def test_a_service_that_serves_has_loaded_nothing_of_the_rest(data: Path) -> None:
    reading, writing = os.pipe()
    program = "import atexit, sys; atexit.register(lambda: print(*sys.modules)); " + (
        "from trainshed.serve.main import main; main()"
    )
    words = ("up", "--port", "0", "--data", str(data), "--ready-fd", str(writing))
    with subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env=environment(data),
        pass_fds=(writing,),
        stdout=subprocess.PIPE,
        text=True,
    ) as service:
        os.close(writing)
        assert os.read(reading, 1)
        os.close(reading)
        service.terminate()
        loaded = set(service.communicate()[0].split())
    assert "trainshed.engines.local.engine" in loaded
    assert loaded & RARE == set()


def test_what_only_some_requests_need_is_loaded_by_them() -> None:
    loaded = loaded_by(ALL)
    assert "trainshed.controller.controller" in loaded
    assert not loaded & RARE
