"""Confined installations at every level of this machine and user: creation, limits and end
(spec/program#isolation). tests/e2e/test_hostile_builds.py tests what an installation can see and change."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.contract.runtimes.conftest import probe
from tests.e2e.processes import wait_until_gone
from trainshed.replica.protocol import LEVEL_ROOT, LEVEL_USER
from trainshed.replica.sandbox import levels
from trainshed.runtimes.confinement import Confinement, InstallationTerms, LentDirectory
from trainshed.runtimes.installer import running

_FORKS = """
import os, time
made = 0
try:
    for _ in range(300):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        made += 1
except OSError:
    print(made, "refused", flush=True)
else:
    print(made, "made", flush=True)
"""

_FILES = """
import os, time
for number in range(80):
    with open(os.path.expanduser("~/%d" % number), "wb") as file:
        file.write(b"x" * (1 << 20))
time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("data", "shown", "site", "room"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "secret").write_text("a secret")
    (tmp_path / "shown" / "file").write_text("may be read")
    tmp_path.chmod(0o755)
    return tmp_path


@dataclass(frozen=True)
class Result:
    """The result of an installation. `output` contains stdout and stderr, `verdict` the message of
    its supervisor."""

    code: int
    output: str
    verdict: str | None


BETWEEN = (LEVEL_ROOT, LEVEL_USER) if os.geteuid() == 0 else ()


@pytest.fixture(
    scope="module",
    params=[
        # The levels between the strongest and the weakest. tests/e2e/test_hostile_builds.py has an
        # ordinary user's level.
        pytest.param(level, marks=pytest.mark.soak) if level in BETWEEN else level
        for level in levels.LEVELS
    ],
)
def level(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Each isolation level that works here for this user."""
    available, refused = probe(tmp_path_factory.mktemp("probe"), (request.param,))
    if not available:
        pytest.skip(f"{request.param} is NOT tested as this user: {refused}")
    return available


def _confinement(place: Path, level: str, **terms: Any) -> Confinement:
    made = Confinement(
        workspace=str(place / "room"),
        writable=(str(place / "site"),),
        shown=(str(place / "shown"), *dict.fromkeys((sys.prefix, sys.base_prefix))),
        terms=InstallationTerms(level, hidden=(str(place / "data"),), **terms),
        name=f"trainshed-build-test-{uuid.uuid4().hex}",
    )
    made.prepare()
    return made


def _run(confinement: Confinement, *command: str) -> Result:
    environ = {"PATH": os.defpath}
    with running([*command, "--offline"], environ, Path(confinement.workspace), confinement) as run:
        assert run.process.stdout is not None
        late = threading.Timer(60, run.end)
        late.start()
        output = run.process.stdout.read().decode()
        code = run.process.wait()
        late.cancel()
        return Result(code, output, run.verdict())


def _python(confinement: Confinement, code: str, *arguments: str) -> Result:
    return _run(confinement, sys.executable, "-I", "-c", code, *arguments)


def test_restrictive_umask_does_not_block_an_installation(place: Path, level: str) -> None:
    """`trainshed up` sets such a umask. Inaccessible directories on the way to visible ones are recreated."""
    hidden = place / "closed"
    (hidden / "within").mkdir(parents=True)
    room = hidden / "within" / "room"
    hidden.chmod(0o700)
    confinement = replace(_confinement(place, level), workspace=str(room))
    confinement = replace(
        confinement, terms=replace(confinement.terms, hidden=(str(hidden), str(place / "data")))
    )
    before = os.umask(0o077)
    try:
        confinement.prepare()
        done = _python(confinement, "open('tmp/x', 'w').write('x'); print('ran')")
    finally:
        os.umask(before)
    assert (done.code, done.output) == (0, "ran\n"), done


def test_directory_shown_to_a_confined_program_is_readable_but_not_its_symlinks(
    place: Path, level: str
) -> None:
    """docs/tensorboard.md: files of programs are shown to a viewer."""
    if level == "session":
        pytest.skip("nothing can be lent at level session")
    (place / "bucket/job/logs").mkdir(parents=True)
    (place / "bucket/job/logs/events").write_text("written")
    (place / "bucket/job/logs/link").symlink_to(place / "data/secret")
    (place / "bucket/other").symlink_to("job")
    for name in ("here", "there"):
        (place / "room/logs" / name).mkdir(parents=True)
    code = f"""
import os, pathlib
logs = pathlib.Path({str(place / "room/logs/here")!r})
print((logs / "events").read_text(), (logs / "link").exists(), os.access(logs / "..", os.R_OK))
try:
    (logs / "more").write_text("x")
except OSError:
    print("not written")
"""
    lent = LentDirectory(str(place / "bucket"), ("job", "logs"), str(place / "room/logs/here"))
    confinement = replace(_confinement(place, level), lent=(lent,))
    hidden = (str(place / "data"), str(place / "bucket"))
    confinement = replace(confinement, terms=replace(confinement.terms, hidden=hidden))
    done = _python(confinement, code)
    assert (done.code, done.output) == (0, "written False True\nnot written\n"), done
    linked = LentDirectory(str(place / "bucket"), ("other", "logs"), str(place / "room/logs/there"))
    refused = _python(replace(confinement, lent=(linked,)), "print('ran')")
    assert "cannot run at isolation level" in str(refused.verdict)
    assert "ran" not in refused.output


def test_installation_without_network_cannot_connect(place: Path, level: str) -> None:
    code = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        confinement = _confinement(place, level)
        assert _python(confinement, code, port).code == 0
        done = _python(replace(confinement, network=False), code, port)
    assert done.code == (0 if level == "session" else 1), done
    assert level == "session" or "unreachable" in done.output


def test_archives_are_checked_even_if_the_python_library_is_hidden(place: Path, level: str) -> None:
    """All modules that the check needs were loaded before. The installer reports its result."""
    (place / "packed/p-1").mkdir(parents=True)
    (place / "packed/p-1/\xfcber.py").touch()
    made = [
        shutil.make_archive(str(place / "shown/p"), kind, place / "packed")
        for kind in ("gztar", "bztar", "xztar", "zip")
    ]
    confinement = _confinement(place, level)
    confinement = replace(
        confinement,
        shown=(str(place / "shown"),),
        terms=replace(confinement.terms, hidden=(str(Path(os.__file__).parent),)),
        archives=tuple(made),
        when_plain=("plain",),
    )
    done = _run(confinement, "/bin/echo", "ran")
    assert done.output == "ran --offline plain\n", done


def test_rejected_archive_is_reported_and_not_executed(place: Path, level: str) -> None:
    source = place / "shown" / "p.zip"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("p-1/PKG-INFO", bytes(8 << 20))
    done = _run(replace(_confinement(place, level), archives=(str(source),)), "/bin/echo", "ran")
    assert (done.code, done.output) == (1, "")
    assert "of more than 4 MiB, which is the limit" in str(done.verdict)


def test_installation_fails_instead_of_using_a_weaker_isolation_level(place: Path) -> None:
    """spec/program#isolation: the installation fails instead of using a weaker level."""
    if os.geteuid() == 0:
        # The owners of files on this file system cannot be mapped.
        confinement = replace(_confinement(place, "own-user"), writable=("/sys/kernel",))
    else:
        confinement = _confinement(place, "own-user")
    done = _run(confinement, "/bin/echo", "ran")
    assert done.code == 1
    assert "ran" not in done.output
    assert "cannot run at isolation level own-user" in str(done.verdict)
    assert "--isolation" in str(done.verdict)


def test_process_limit_ends_an_installation(place: Path) -> None:
    """At level `session` the kernel does not enforce a process limit for root, so the service counts the
    processes."""
    done = _python(_confinement(place, "session", processes=40), _FORKS + "time.sleep(60)")
    assert done.code != 0 or "refused" in done.output
    if os.geteuid() == 0:
        assert "40 processes" in str(done.verdict)


def test_disk_limit_ends_an_installation(place: Path, level: str) -> None:
    confinement = _confinement(place, level, disk_bytes=64 << 20)
    done = _python(confinement, _FILES)
    assert done.code != 0
    assert "0.0625 GiB" in str(done.verdict)


def test_file_size_is_limited_in_an_installation(place: Path, level: str) -> None:
    confinement = _confinement(place, level, disk_bytes=4 << 20)
    code = "import os; f = open(os.path.expanduser('~/f'), 'wb', 0); f.seek(5 << 20); f.write(b'x')"
    assert _python(confinement, code).code != 0
    assert (Path(confinement.workspace) / "home" / "f").stat().st_size <= 4 << 20


def test_time_limit_ends_an_installation(place: Path, level: str) -> None:
    confinement = _confinement(place, level, seconds=1)
    confinement = replace(confinement, until=time.monotonic() + 1)
    done = _run(confinement, "/bin/sh", "-c", "setsid sleep 600 & sleep 600")
    assert done.code == 137
    assert "1 seconds" in str(done.verdict)


def test_ended_installation_leaves_no_processes(place: Path, level: str) -> None:
    """A process with a session of its own ends too."""
    script = "setsid sleep 600 & echo running; exec sleep 600"
    confinement = _confinement(place, level)
    with running(["/bin/sh", "-c", script], {}, place / "room", confinement) as run:
        assert run.process.stdout is not None and run.process.stdout.readline() == b"running\n"
        run.end()
        # The pipe reaches its end when no process has it open.
        assert run.process.stdout.read() == b""
        assert run.process.wait() == 137
        assert run.verdict() is None


def test_installation_ends_with_a_killed_service(place: Path, level: str) -> None:
    confinement = _confinement(place, level)
    script = "setsid sleep 600 & echo running; exec sleep 600"
    code = (
        "import pathlib, sys, os, msgspec; from trainshed.runtimes.installer import running\n"
        "from trainshed.runtimes.confinement import Confinement\n"
        "apart = msgspec.json.decode(sys.argv[1], type=Confinement)\n"
        f"with running(['/bin/sh', '-c', {script!r}], dict(os.environ), "
        "pathlib.Path(apart.workspace), apart) as run:\n"
        "    print(run.process.stdout.readline(), flush=True)\n"
        "    os.set_inheritable(run.output, True)\n"
        "    os.dup2(run.output, 5); os.kill(os.getpid(), 9)\n"
    )
    reader, writer = os.pipe()
    service = subprocess.Popen(
        [sys.executable, "-c", code, msgspec.json.encode(confinement).decode()],
        stdout=writer,
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pipe.readline() == b"b'running\\n'\n"
        assert service.wait() == -9
    wait_until_gone(_remaining_processes(confinement.workspace))


def _remaining_processes(room: str) -> list[int]:
    """Return the processes of an installation, by their working directory."""
    left: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str((process / "cwd").readlink()).startswith(room):
                left.append(int(process.name))
        except OSError:
            continue
    return left
