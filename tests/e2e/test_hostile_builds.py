"""Hostile setup scripts in a complete service, at every isolation level: each is confined like the programs
there.
"""

import gzip
import json
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.hostile.attack_setup import MEMORY, PROCESSES, AttackSetup, open_attack_setup
from tests.e2e.hostile.table import Column, columns
from tests.e2e.packages import package_job, source_package, upload
from tests.e2e.processes import processor_seconds
from tests.e2e.running import Service, json_of, running, submit
from tests.unit.test_runtimes_archives import header, zip_of_many
from trainshed.runtimes.confinement import MAX_MEMBERS

pytestmark = pytest.mark.e2e

_TASK = """
import pathlib
print("FACTS", pathlib.Path(__file__).with_name("facts.json").read_text())
"""
_PRYING = """
import errno, json, os, pathlib, signal, socket, time
from setuptools import setup
# {unique}
told = json.loads({told!r})

def tried(work):
    try:
        return str(work())
    except OSError as failure:
        return "refused: " + errno.errorcode.get(failure.errno, "")

def bound(address):
    with socket.socket() as mine:
        mine.bind(tuple(address))
    return "bound"

def forked():
    made = []
    try:
        for _ in range(400):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            made.append(child)
    except OSError:
        pass
    for child in made:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(made)

status = dict(line.rstrip().split(":\\t") for line in open("/proc/self/status") if line.startswith("Cap"))
facts = {{
    "read": {{path: tried(lambda: open(path).read(1)) for path in told["files"]}},
    "written": {{path: tried(lambda: open(path, "a").close()) for path in told["written"]}},
    "signals": {{str(pid): tried(lambda: os.kill(pid, 0)) for pid in told["pids"]}},
    "bound": {{str(address): tried(lambda: bound(address)) for address in told["addresses"]}},
    "forks": forked(),
    "capabilities": status,
    "uids": open("/proc/self/uid_map").read().split(),
    "environ": sorted(os.environ),
}}
pathlib.Path("trainer/facts.json").write_text(json.dumps(facts))
setup(name="pkg", version="1.0", packages=["trainer"], package_data={{"trainer": ["facts.json"]}})
"""


@dataclass(frozen=True)
class AttackRun:
    """Data that a setup script obtained under a service."""

    column: Column
    setup: AttackSetup
    facts: dict[str, Any]


@pytest.fixture(
    scope="module",
    # tests/contract/runtimes/test_installation_confinement.py tests all levels.
    params=columns(),
)
def attack_run(request: pytest.FixtureRequest) -> Iterator[AttackRun]:
    column: Column = request.param
    with open_attack_setup(column) as setup:
        service, data = setup.service, setup.service.data
        at_home, port = setup.home_file(), int(service.rest.rpartition(":")[2])
        files = [data / name for name in ("trainshed.db", "access.json", "service.json")]
        try:
            words = {
                "files": [str(file) for file in (*files, at_home) if file],
                "written": ["/etc/passwd", str(data / "planted"), str(setup.place / "planted")],
                "pids": [service.pid],
                "addresses": [["127.64.0.77", 2222], ["0.0.0.0", 2222], ["127.0.0.1", port]],
            }
            setup_script = _PRYING.format(unique=uuid.uuid4().hex, told=json.dumps(words))
            job = _submit(service, source_package(_TASK, setup_script))
            view = service.finish(job, 240)
        finally:
            if at_home is not None:
                at_home.unlink()
        assert view["state"] == "SUCCEEDED", (view, service.lines(job, "service"))
        yield AttackRun(column, setup, json_of(service.lines(job), "FACTS"))


def _submit(service: Service, content: bytes, name: str = "pkg-1.0.tar.gz") -> str:
    job = package_job(upload(service, f"{uuid.uuid4().hex}/{name}", content))
    pool = job["jobSpec"]["workerPoolSpecs"][0]
    pool["pythonPackageSpec"]["executorImageUri"] = "python:3"
    return submit(service, job)


def _is_namespaced(attack_run: AttackRun) -> bool:
    return attack_run.column.level != "session"


def test_setup_script_cannot_read_or_write_the_service(attack_run: AttackRun) -> None:
    """At level `session` no mechanism prevents the access, and the documentation does not promise it."""
    if not _is_namespaced(attack_run):
        return
    assert {answer[:7] for answer in attack_run.facts["read"].values()} == {"refused"}, attack_run.facts
    assert {answer[:7] for answer in attack_run.facts["written"].values()} == {"refused"}, attack_run.facts
    assert not list(attack_run.setup.service.data.glob("planted"))
    assert {answer[:7] for answer in attack_run.facts["signals"].values()} == {"refused"}, attack_run.facts


def test_setup_script_has_no_capabilities(attack_run: AttackRun) -> None:
    """At level `session` the script has the capabilities of the service's user, which has none here."""
    assert set(attack_run.facts["capabilities"].values()) <= {"0000000000000000"} or not _is_namespaced(
        attack_run
    )
    assert attack_run.facts["capabilities"]["CapEff"] == "0000000000000000"
    if attack_run.column.level == "own-user":
        assert attack_run.facts["uids"][1] != "0"


def test_setup_script_has_the_process_limit_of_a_program(attack_run: AttackRun) -> None:
    # Without a namespace they are counted together with the service's, which change.
    assert attack_run.facts["forks"] <= (PROCESSES if _is_namespaced(attack_run) else 2 * PROCESSES)


def test_setup_script_cannot_listen_on_foreign_addresses(attack_run: AttackRun) -> None:
    assert {answer[:7] for answer in attack_run.facts["bound"].values()} == {"refused"}, attack_run.facts


def test_setup_script_sees_no_variables_of_the_service(attack_run: AttackRun) -> None:
    assert not [name for name in attack_run.facts["environ"] if name.startswith("TRAINSHED")]


def test_setup_script_that_exceeds_the_memory_limit_fails_the_job(attack_run: AttackRun) -> None:
    setup_script = f"# {uuid.uuid4().hex}\ntaken = [bytearray(b'x' * (16 << 20)) for _ in range(96)]\n"
    job = _submit(attack_run.setup.service, source_package("", setup_script))
    error = attack_run.setup.service.finish(job, 240)["error"]
    assert error["code"] == 3
    assert f"its limit of {MEMORY >> 20} MiB" in error["message"], error


# --- archives ---


def _tar_bomb() -> bytes:
    """Return a tar archive that expands to 8.1 GiB: 520 times the same 16 MiB."""
    head, zeros = header("p-1/zeros", 520 * 16 << 20), bytes(16 << 20)
    return gzip.compress(head) + gzip.compress(zeros) * 520 + gzip.compress(bytes(1024))


_BOMBS = {
    "p.tar.gz": (_tar_bomb, "unpacks to more than 8 GiB"),
    "members.zip": (lambda: zip_of_many(2 * MAX_MEMBERS), f"contains more than {MAX_MEMBERS} files"),
}


def _memory(service: Service) -> int:
    """Return the peak memory of the service in bytes."""
    status = Path(f"/proc/{service.pid}/status").read_text()
    return next(int(x.split()[1]) << 10 for x in status.splitlines() if x.startswith("VmHWM"))


def test_decompression_bombs_do_not_affect_the_service(tmp_path: Path) -> None:
    """Earlier, a zip of 1.5 MB increased the service's memory to 1.1 GiB and left the job PENDING, and a tar
    blocked other requests for 22 s. A stopping service waited forever for the thread that inspected the
    archive. The test measures CPU time, because other processes do not affect it."""
    with running(tmp_path / "data") as service:
        # The service itself stores uploads, and they finish before the measurement.
        contents = {name: make() for name, (make, _) in _BOMBS.items()}
        uris = {n: upload(service, f"{uuid.uuid4().hex}/{n}", c) for n, c in contents.items()}
        long = gzip.compress(header("p-1/zeros", 6 << 30)) + gzip.compress(bytes(16 << 20)) * 384
        endless = upload(service, "p.tar.gz", long)
        # Reset the peak.
        Path(f"/proc/{service.pid}/clear_refs").write_text("5")
        before, longest, done = _memory(service), 0.0, threading.Event()

        def ask() -> None:
            nonlocal longest
            while not done.is_set():
                begin = processor_seconds(service.pid)
                service.call("GET", "/trainshed/v1/status")
                longest = max(longest, processor_seconds(service.pid) - begin)
                done.wait(0.1)

        asking = threading.Thread(target=ask)
        asking.start()
        jobs = {name: submit(service, package_job(uri)) for name, uri in uris.items()}
        views = {name: service.finish(job, 300) for name, job in jobs.items()}
        done.set()
        asking.join()
        grown = _memory(service) - before
        for name, view in views.items():
            assert view["state"] == "FAILED", (name, view)
            assert uris[name] in view["error"]["message"], view
            assert _BOMBS[name][1] in view["error"]["message"], view
        assert grown < 64 << 20
        assert longest < 2.0, "it computed for 22 s, and whoever called waited"

        job = submit(service, package_job(endless))
        for line in service.follow(job, "service"):
            if "isolation level" in line:
                break
        assert service.terminate() == 0
