"""Shells in running replicas: the program's own view, rights and limits, and never its fate
(spec/operations#shells)."""

import asyncio
import os
import shutil

import pytest

from tests.contract.engines.conftest import PRIMARY, PYTHON, House
from trainshed.core.launch import Limits
from trainshed.core.names import JobUid
from trainshed.core.terminals import Terminal, TerminalRefused, TerminalRequest
from trainshed.engines.local import terminals

PLAIN = {"is_terminal": False}


async def opened(house: House, uid: JobUid, **wish: object) -> Terminal:
    made = TerminalRequest(**wish)  # pyright: ignore[reportArgumentType] - built by name
    return await house.engine.open_terminal(uid, 1, PRIMARY, 1, made)


async def shown(terminal: Terminal, typed: bytes = b"") -> str:
    """All that a shell shows until its end; `typed` is all that is typed into it."""
    if typed:
        await terminal.write(typed)
        await terminal.end_input()
    parts: list[bytes] = []
    async with asyncio.timeout(60):
        while data := await terminal.read():
            parts.append(data)
    terminal.close()
    return b"".join(parts).decode()


async def until(terminal: Terminal, wanted: str) -> str:
    """What is shown up to and with `wanted`."""
    text = ""
    async with asyncio.timeout(60):
        while wanted not in text:
            data = await terminal.read()
            assert data, text
            text += data.decode()
    return text


async def sleeper(house: House, **fields: object) -> JobUid:
    uid = await house.run("sleep", "100", **fields)
    await house.started(uid)
    return uid


async def test_it_has_the_programs_environment_directory_and_status(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/operations#shells: a shell into a running replica's own environment."""
    # On a busy machine the word of its end may come long after its last byte.
    monkeypatch.setattr(terminals, "_STATUS_TIMEOUT", 60.0)
    program = "echo made >here; exec sleep 100"
    uid = await house.run("sh", "-c", program, environ=(("ASKED", "as given"),))
    await house.started(uid)
    terminal = await opened(house, uid, **PLAIN)
    script = b"until [ -s here ]; do :; done; cat here; echo $ASKED; hostname; exit 7\n"
    seen = (await shown(terminal, script)).splitlines()
    assert seen[:2] == ["made", "as given"]
    if house.engine.capabilities().stable_hostname:
        assert seen[2] == f"host-{uid}-{PRIMARY}"
    assert terminal.status == 7


async def test_it_ends_with_the_program_and_is_not_its_end(house: House) -> None:
    """A shell never keeps a replica alive, and its exit is not the program's."""
    uid = await house.run("sh", "-c", "until [ -e go ]; do sleep 0.05; done; exit 5")
    await house.started(uid)
    assert "out" in await shown(await opened(house, uid, **PLAIN), b"echo out; exit 9\n")
    stays = await opened(house, uid)
    await shown(await opened(house, uid, **PLAIN), b"touch go\n")
    assert (await house.exit(uid)).exit.exit_code == 5
    await shown(stays)
    assert stays.status is None
    with pytest.raises(TerminalRefused, match="ended"):
        await opened(house, uid)


async def test_who_hangs_up_takes_the_shell_along(house: House, mark: str) -> None:
    """As the service's death does: its end of the terminal is closed."""
    if not shutil.which("ps"):
        pytest.skip("there is no ps that tells it")
    uid = await sleeper(house)
    stubborn = f"trap '' HUP; : {mark}; echo here; while :; do sleep 0.1; done"
    terminal = await opened(house, uid, command=stubborn)
    await until(terminal, "here")
    other = await opened(house, uid, **PLAIN)
    count = f"ps axww -o args= | grep -c '^[b]*a*sh -c trap.*{mark}'\n".encode()
    # It is counted twice while a fork of it becomes `sleep`.
    assert "0" not in (await shown(other, count)).split()
    terminal.close()
    async with asyncio.timeout(60):
        while "0" not in (await shown(await opened(house, uid, **PLAIN), count)).split():
            pass
    assert not house.ends(uid)


async def test_it_counts_against_the_programs_limits(house: House) -> None:
    """spec/program#isolation: its own memory limit is all that there is for a shell, too; the program lives
    on."""
    uid = await sleeper(house, limits=Limits(memory=150 << 20))
    eater = f"{PYTHON} -c 'import time; x = bytearray(300 << 20); time.sleep(100)'; echo $?"
    terminal = await opened(house, uid, command=eater, **PLAIN)
    assert (await shown(terminal)).split()[-1] == "137"
    assert not house.ends(uid)


async def test_what_does_not_run_has_none(house: House) -> None:
    uid = house.job()
    await house.allocate(uid)
    with pytest.raises(TerminalRefused):
        await opened(house, uid)
    running = await sleeper(house)
    with pytest.raises(TerminalRefused):
        await house.engine.open_terminal(running, 1, PRIMARY, 2, TerminalRequest())


@pytest.mark.skipif(os.geteuid() != 0, reason="only a service that is root has users to give away")
async def test_it_is_the_programs_own_user(house: House) -> None:
    """spec/program#isolation: a shell has exactly the program's rights."""
    tell = "cat /proc/self/uid_map; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status; id"
    uid = await house.run("sh", "-c", f"({tell}) >told; echo done >there; exec sleep 100")
    await house.started(uid)
    script = f"until [ -e there ]; do :; done; cat told; echo ==; {tell}\n"
    seen = await shown(await opened(house, uid, **PLAIN), script.encode())
    program, _, shell = seen.partition("==\n")
    assert program == shell
    assert "CapEff" in program
