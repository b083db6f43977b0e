"""Shells in running replicas: they have the program's view, rights and limits, and do not affect
the program (spec/operations#shells)."""

import asyncio
import os
import shutil

import pytest

from tests.contract.engines.conftest import PRIMARY, PYTHON, EngineHarness
from trainshed.core.launch import Limits
from trainshed.core.names import JobUid
from trainshed.core.terminals import Terminal, TerminalRefused, TerminalRequest
from trainshed.engines.local import terminals

PLAIN = {"is_terminal": False}


async def open_terminal(harness: EngineHarness, uid: JobUid, **wish: object) -> Terminal:
    made = TerminalRequest(**wish)  # pyright: ignore[reportArgumentType] - built by name
    return await harness.engine.open_terminal(uid, 1, PRIMARY, 1, made)


async def output_of(terminal: Terminal, typed: bytes = b"") -> str:
    """Type the input, and return the shell's complete output after its end."""
    if typed:
        await terminal.write(typed)
        await terminal.end_input()
    parts: list[bytes] = []
    async with asyncio.timeout(60):
        while data := await terminal.read():
            parts.append(data)
    terminal.close()
    return b"".join(parts).decode()


async def output_until(terminal: Terminal, wanted: str) -> str:
    """Return the output up to and including `wanted`."""
    text = ""
    async with asyncio.timeout(60):
        while wanted not in text:
            data = await terminal.read()
            assert data, text
            text += data.decode()
    return text


async def start_sleeping_job(harness: EngineHarness, **fields: object) -> JobUid:
    uid = await harness.run("sleep", "100", **fields)
    await harness.wait_for_start(uid)
    return uid


async def test_shell_has_the_programs_environment_and_directory(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/operations#shells: a shell runs in the replica's own environment."""
    # On a busy machine the exit status may arrive long after the last byte.
    monkeypatch.setattr(terminals, "_STATUS_TIMEOUT", 60.0)
    program = "echo made >here; exec sleep 100"
    uid = await harness.run("sh", "-c", program, environ=(("ASKED", "as given"),))
    await harness.wait_for_start(uid)
    terminal = await open_terminal(harness, uid, **PLAIN)
    script = b"until [ -s here ]; do :; done; cat here; echo $ASKED; hostname; exit 7\n"
    seen = (await output_of(terminal, script)).splitlines()
    assert seen[:2] == ["made", "as given"]
    if harness.engine.capabilities().stable_hostname:
        assert seen[2] == f"host-{uid}-{PRIMARY}"
    assert terminal.status == 7


async def test_shell_ends_with_its_program_but_the_program_survives_its_shell(harness: EngineHarness) -> None:
    """A shell does not keep a replica alive, and its exit status is not the program's."""
    uid = await harness.run("sh", "-c", "until [ -e go ]; do sleep 0.05; done; exit 5")
    await harness.wait_for_start(uid)
    assert "out" in await output_of(await open_terminal(harness, uid, **PLAIN), b"echo out; exit 9\n")
    stays = await open_terminal(harness, uid)
    await output_of(await open_terminal(harness, uid, **PLAIN), b"touch go\n")
    assert (await harness.exit(uid)).exit.exit_code == 5
    await output_of(stays)
    assert stays.status is None
    with pytest.raises(TerminalRefused, match="ended"):
        await open_terminal(harness, uid)


async def test_disconnect_ends_the_shells_processes(harness: EngineHarness, mark: str) -> None:
    """The death of the service closes its end of the terminal too."""
    if not shutil.which("ps"):
        pytest.skip("there is no ps that tells it")
    uid = await start_sleeping_job(harness)
    stubborn = f"trap '' HUP; : {mark}; echo here; while :; do sleep 0.1; done"
    terminal = await open_terminal(harness, uid, command=stubborn)
    await output_until(terminal, "here")
    other = await open_terminal(harness, uid, **PLAIN)
    count = f"ps axww -o args= | grep -c '^[b]*a*sh -c trap.*{mark}'\n".encode()
    # The shell appears twice while its fork becomes `sleep`.
    assert "0" not in (await output_of(other, count)).split()
    terminal.close()
    async with asyncio.timeout(60):
        while "0" not in (await output_of(await open_terminal(harness, uid, **PLAIN), count)).split():
            pass
    assert not harness.ends(uid)


async def test_shell_counts_toward_the_replicas_memory_limit(harness: EngineHarness) -> None:
    """spec/program#isolation: a shell shares the replica's memory limit, and the program continues."""
    uid = await start_sleeping_job(harness, limits=Limits(memory=150 << 20))
    allocates = f"{PYTHON} -c 'import time; x = bytearray(300 << 20); time.sleep(100)'; echo $?"
    terminal = await open_terminal(harness, uid, command=allocates, **PLAIN)
    assert (await output_of(terminal)).split()[-1] == "137"
    assert not harness.ends(uid)


async def test_replica_that_is_not_running_has_no_shell(harness: EngineHarness) -> None:
    uid = harness.job()
    await harness.allocate(uid)
    with pytest.raises(TerminalRefused):
        await open_terminal(harness, uid)
    running = await start_sleeping_job(harness)
    with pytest.raises(TerminalRefused):
        await harness.engine.open_terminal(running, 1, PRIMARY, 2, TerminalRequest())


@pytest.mark.skipif(os.geteuid() != 0, reason="only a service that is root has users to give away")
async def test_shell_runs_as_the_programs_user(harness: EngineHarness) -> None:
    """spec/program#isolation: a shell has exactly the program's rights."""
    show_rights = "cat /proc/self/uid_map; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; id"
    uid = await harness.run("sh", "-c", f"({show_rights}) >told; echo done >there; exec sleep 100")
    await harness.wait_for_start(uid)
    script = f"until [ -e there ]; do :; done; cat told; echo ==; {show_rights}\n"
    seen = await output_of(await open_terminal(harness, uid, **PLAIN), script.encode())
    program, _, shell = seen.partition("==\n")
    assert program == shell
    assert "CapEff" in program
