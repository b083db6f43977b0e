"""Starts of agents on nodes without an installation of Trainshed: the command and its input
(docs/adr/0063)."""

import contextlib
import importlib.machinery
import os
import subprocess
import sys
import unittest.mock
import zlib
from pathlib import Path

import pytest

from tests.caches import CACHE
from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.interpreters import Interpreters
from trainshed_cluster.remote.content.bootstrap import AGENT, AgentCode, Bootstrap
from trainshed_cluster.remote.content.extensions import PYTHONS, Extensions
from trainshed_cluster.remote.content.loader import UNFIT

PYTHON = str(Path(sys.executable).resolve())
"""Not a Python of a virtual environment: it has none of the required packages."""


@pytest.fixture(scope="module")
def code() -> AgentCode:
    return AgentCode.collect()


def _start(
    code: AgentCode,
    node: Path,
    *,
    python: str = PYTHON,
    module: str = "quopri",
    document: bytes = b"=41=42",
    cut: int = 0,
) -> "subprocess.Popen[bytes]":
    """Start an agent. `module`: a module of the standard library with a `main` that reads standard input."""
    bootstrap = Bootstrap(code, python, str(node), module)
    argv, standard_input = bootstrap.argv, bootstrap.parcel(document)
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env={})
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(standard_input[: len(standard_input) - cut])
        process.stdin.flush()
    return process


def _run(code: AgentCode, node: Path, **how: object) -> tuple[int, str, str]:
    process = _start(code, node, **how)  # pyright: ignore[reportArgumentType] - as its caller says
    out, errors = process.communicate(timeout=60)
    return process.returncode, out.decode(), errors.decode()


def _code_directories(node: Path) -> list[str]:
    return sorted(path.name for path in (node / "code").iterdir() if path.name != ".lock")


def test_agent_code_is_unpacked_once_per_node(code: AgentCode, tmp_path: Path) -> None:
    first = _run(code, tmp_path / "node")
    assert first == (0, "=3D41=3D42", ""), "the document is missing on its input"
    assert _code_directories(tmp_path / "node") == [code.digest]
    module = tmp_path / "node" / "code" / code.digest / "trainshed" / "__init__.py"
    before = module.stat()
    assert _run(code, tmp_path / "node") == first
    assert module.stat().st_ino == before.st_ino, "the code was unpacked again"


def test_agent_runs_only_code_that_the_service_sent(code: AgentCode, tmp_path: Path) -> None:
    """The agent runs without site-packages. All imports come from the sent code."""
    document = b"12\n" + zlib.compress(b"none")
    status, _, errors = _run(code, tmp_path / "node", module=AGENT, document=document)
    assert status == 1
    assert "ValueError: cannot read the agent's startup document" in errors
    assert f"{tmp_path}/node/code/{code.digest}/trainshed_cluster/remote/agent_process.py" in errors


def test_agents_run_on_every_supported_python(tmp_path: Path) -> None:
    """All agents get the same archive, whatever the service's Python version is."""
    extensions = Extensions(CACHE, tmp_path / "extensions")
    files = extensions.files()
    if not files:
        pytest.skip("NOT TESTED: agents by other versions of Python: there is no package index")
    assert len(files) == len(PYTHONS) - 1
    # A fetched module is stored.
    with unittest.mock.patch.object(Installer, "install", side_effect=AssertionError):
        assert Extensions(CACHE, tmp_path / "extensions").files() == files
    code = AgentCode.collect(files)
    document = b"12\n" + zlib.compress(b"none")
    known = {python.minor: python.executable for python in Interpreters().search()}
    others = [path for version, path in known.items() if version >= (3, 11)]
    for number, path in enumerate(others):
        node = tmp_path / f"node{number}"
        status, _, errors = _run(code, node, module=AGENT, document=document, python=str(path))
        assert status == 1, errors
        assert "ValueError: cannot read the agent's startup document" in errors
        assert f"{node}/code/{code.digest}/trainshed_cluster/remote/agent_process.py" in errors
    if not others:
        pytest.skip("NOT TESTED: agents by other versions of Python: none is installed")


def test_agents_need_the_python_version_of_the_service_if_no_package_index_responds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with unittest.mock.patch.object(Installer, "install", side_effect=InstallFailed(("offline",))):
        extensions = Extensions(CACHE, tmp_path)
        assert extensions.files() == ()
    assert "agents cannot run on nodes with Python 3.1" in caplog.text
    assert len(caplog.records) == len(PYTHONS) - 1
    assert AgentCode.collect(()) == AgentCode.collect()


def test_agent_with_a_truncated_start_document_does_not_start(code: AgentCode, tmp_path: Path) -> None:
    document = b"99\n" + zlib.compress(b"none")
    status, out, errors = _run(code, tmp_path / "node", module=AGENT, document=document)
    assert (status, out) == (1, "")
    assert "EOFError: the agent's startup document is incomplete" in errors


def test_agent_receives_a_long_start_document_completely(code: AgentCode, tmp_path: Path) -> None:
    document = b"line\n" * 40_000
    assert _run(code, tmp_path / "node", document=document) == (0, document.decode(), "")


def test_concurrent_agent_starts_unpack_the_agent_code_once(code: AgentCode, tmp_path: Path) -> None:
    started = [_start(code, tmp_path / "node") for _ in range(6)]
    assert [process.communicate(timeout=60)[0] for process in started] == [b"=3D41=3D42"] * 6
    assert _code_directories(tmp_path / "node") == [code.digest]


@pytest.mark.parametrize("cut", [200_000, 500_000])
def test_truncated_transfer_leaves_no_agent_code_on_the_node(
    code: AgentCode, tmp_path: Path, cut: int
) -> None:
    status, _, errors = _run(code, tmp_path / "node", cut=cut)
    assert (status, errors.rpartition(": ")[2]) == (UNFIT, "the input ended early\n")
    assert not (tmp_path / "node").exists()


def test_incompletely_unpacked_agent_code_is_unpacked_again(code: AgentCode, tmp_path: Path) -> None:
    kept = tmp_path / "node" / "code"
    (kept / f".{code.digest}.4711").mkdir(parents=True)
    (kept / code.digest).mkdir()
    (kept / code.digest / ".built").write_text("another boot")
    assert _run(code, tmp_path / "node") == (0, "=3D41=3D42", "")
    assert _code_directories(tmp_path / "node") == [code.digest]


def test_agent_on_an_unsupported_python_version_exits_with_an_error(code: AgentCode, tmp_path: Path) -> None:
    bootstrap = Bootstrap(code, PYTHON, str(tmp_path / "node"))
    argv, standard_input = bootstrap.argv, bootstrap.parcel(b"")
    ours = importlib.machinery.EXTENSION_SUFFIXES[0].encode()
    theirs = ours.replace(b"cpython-3", b"cpython-9")
    done = subprocess.run(
        argv, input=standard_input.replace(ours, theirs, 1), capture_output=True, check=False
    )
    assert done.returncode == UNFIT
    stderr = done.stderr.decode()
    assert stderr.startswith(f"trainshed agent on {os.uname().nodename}: {PYTHON} is Python ")
    assert f"({ours.decode()}), but the service sent code for {theirs.decode()} only" in stderr
    assert "set `python` of its engine" in stderr
    assert not (tmp_path / "node").exists()


def test_agent_code_with_a_wrong_digest_is_not_run(code: AgentCode, tmp_path: Path) -> None:
    bootstrap = Bootstrap(code, PYTHON, str(tmp_path / "node"), "quopri")
    argv, standard_input = bootstrap.argv, bootstrap.parcel(b"")
    changed = standard_input[:-200_000] + bytes(200_000)
    done = subprocess.run(argv, input=changed, capture_output=True, check=False)
    assert done.returncode == UNFIT
    assert b"the digest of the received code is wrong" in done.stderr
    assert _code_directories(tmp_path / "node") == []


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a directory of another user needs root")
def test_code_directory_of_another_user_is_rejected(code: AgentCode, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    os.chown(tmp_path / "node", 65534, 65534)
    status, _, errors = _run(code, tmp_path / "node")
    assert status == UNFIT
    assert "belongs to user 65534" in errors
