"""Autopsies of failed replicas are kept, opened, copied, and deleted at their expiry
(spec/operations#autopsies)."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, PYTHON, EngineHarness
from tests.contract.engines.test_terminals import output_of, start_sleeping_job
from tests.e2e.processes import commands, wait_until_gone
from trainshed.core.names import JobUid
from trainshed.core.terminals import Autopsy, Terminal, TerminalRefused, TerminalRequest
from trainshed.engines.local import autopsies
from trainshed.replica.supervisor.shells import MAX_SHELLS
from trainshed.replica.system.trees import TreeSize

HOUR = 3600 * 10**9


class FakeClock:
    """A clock that only the test advances."""

    now = 10**18

    def __call__(self) -> int:
        return self.now


async def keep_autopsies(harness: EngineHarness) -> FakeClock:
    """Make the engine keep failed replicas for an hour, and return its clock."""
    time = FakeClock()
    await harness.restart(rules={"autopsy_ttl": HOUR}, now=time)
    return time


async def failed_job(harness: EngineHarness, script: str, **fields: object) -> JobUid:
    """Return a job whose primary ran `script` and ended, with its slots released."""
    uid = await harness.run("sh", "-c", script, **fields)
    await harness.end(uid)
    await harness.engine.release(uid, 1)
    harness.forget(uid)
    return uid


async def open_shell(harness: EngineHarness, uid: JobUid, **wish: object) -> Terminal:
    made = TerminalRequest(**{"is_terminal": False, **wish})  # pyright: ignore[reportArgumentType] - built by name
    return await harness.engine.open_autopsy(uid, 1, PRIMARY, made)


async def measured_autopsy(harness: EngineHarness, uid: JobUid) -> Autopsy:
    """Return the job's only autopsy after its size was measured."""
    kept = harness.engine._autopsies  # pyright: ignore[reportPrivateUsage] - to wait for it
    await kept._tasks.wait()  # pyright: ignore[reportPrivateUsage] - the same
    (autopsy,) = harness.engine.autopsies(uid)
    return autopsy


async def test_environment_of_a_program_is_stored_without_secrets(harness: EngineHarness) -> None:
    """The environment is redacted when it is captured: soon after the program starts, or when the
    service ends."""
    await keep_autopsies(harness)
    secret = "tell-nobody-of-this"
    uid = await harness.run("sleep", "100", environ=(("DB_PASSWORD", secret), ("SEEN", "shown")))
    await harness.wait_for_start(uid)
    await keep_autopsies(harness)
    files = [path for path in harness.data.rglob("*") if path.is_file()]
    assert any("shown" in path.read_text(errors="replace") for path in files)
    assert not [path for path in files if secret in path.read_text(errors="replace")]


async def test_only_failed_replicas_have_an_autopsy(harness: EngineHarness) -> None:
    await keep_autopsies(harness)
    assert harness.engine.autopsies(await failed_job(harness, "exit 0")) == ()
    uid = await start_sleeping_job(harness)
    await harness.engine.stop(uid, 1, 0)
    await harness.exit(uid)
    await harness.engine.release(uid, 1)
    harness.forget(uid)
    assert harness.engine.autopsies(uid) == ()
    by_signal = await failed_job(harness, "kill -SEGV $$")
    assert (await measured_autopsy(harness, by_signal)).signal == 11


async def test_autopsy_shell_shows_the_failure_first(harness: EngineHarness) -> None:
    await keep_autopsies(harness)
    uid = await failed_job(harness, "printf 'the \\033[31mlast\\033[0m words\\n'; exit 3")
    terminal = await open_shell(harness, uid, is_terminal=True)
    seen = await output_of(terminal, b"exit\n")
    assert "exit code 3" in seen
    assert "sh -c" in seen
    # Control sequences in the program's output do not reach the reader's terminal.
    assert "last" in seen
    assert "\x1b[31m" not in seen


@pytest.mark.parametrize("script", ["sleep 100; :' &", "while :; do (sleep 1 &); sleep 0.1; done'"])
async def test_closing_an_autopsy_shell_ends_its_processes(
    harness: EngineHarness, mark: str, script: str
) -> None:
    """Processes that the shell leaves behind end, and so does a shell that ignores the hangup and
    starts orphans."""
    await keep_autopsies(harness)
    uid = await failed_job(harness, "exit 1")
    terminal = await open_shell(harness, uid)
    await terminal.write(f"trap '' HUP; sh -c ': {mark}; echo on; {script}\n".encode())
    assert b"on" in await terminal.read()
    left = commands(mark)
    assert left
    terminal.close()
    await asyncio.to_thread(wait_until_gone, left)


async def test_autopsies_survive_a_restart_and_expire(harness: EngineHarness) -> None:
    time = await keep_autopsies(harness)
    uid = await failed_job(harness, "exit 1")
    autopsy = await measured_autopsy(harness, uid)
    await harness.restart()
    assert await measured_autopsy(harness, uid) == autopsy
    time.now += HOUR + 1
    await harness.restart()
    assert harness.engine.autopsies(uid) == ()
    assert not (harness.data / "autopsies" / str(uid)).exists()
    with pytest.raises(TerminalRefused):
        await open_shell(harness, uid)


@pytest.mark.parametrize(("limit", "most"), [("MAX_BYTES", 6 << 20), ("MAX_AUTOPSIES", 1)])
async def test_oldest_autopsy_is_deleted_at_the_limits(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(autopsies, limit, most)
    time = await keep_autopsies(harness)
    # Random bytes, which no file system stores as a hole.
    fill = "head -c 4000000 /dev/urandom >big; exit 1"
    first = await failed_job(harness, fill)
    await measured_autopsy(harness, first)
    time.now += 1
    second = await failed_job(harness, fill)
    await measured_autopsy(harness, second)
    assert harness.engine.autopsies(first) == ()
    assert harness.engine.autopsies(second)


async def test_autopsy_with_an_open_shell_cannot_be_deleted(harness: EngineHarness) -> None:
    await keep_autopsies(harness)
    uid = await failed_job(harness, "exit 1")
    terminal = await open_shell(harness, uid)
    with pytest.raises(TerminalRefused, match="open"):
        await harness.engine.delete_autopsy(uid, 1, PRIMARY)
    terminal.close()
    assert await harness.engine.delete_autopsy(uid, 1, PRIMARY)
    assert not await harness.engine.delete_autopsy(uid, 1, PRIMARY)
    assert harness.engine.autopsies(uid) == ()


async def test_autopsy_shell_shows_the_current_buckets_and_cannot_bind_addresses_of_programs(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """The buckets and the address of the program's time can belong to another project now."""
    await keep_autopsies(harness)
    uid = await failed_job(harness, "exit 1", buckets=(("gone", str(tmp_path)),))
    [other] = await harness.allocate(uid)
    bind = f"import socket; socket.socket().bind(('{other.address}', 0))"
    look_around = f'ls /gcs; cat /proc/self/uid_map; {PYTHON} -c "{bind}"\n'
    terminal = await open_shell(harness, uid, buckets=(("now", str(tmp_path)),))
    seen = await output_of(terminal, look_around.encode())
    if harness.engine.capabilities().stable_hostname:
        assert seen.splitlines()[0] == "now"
    assert str(other.users) not in seen
    assert "Cannot assign requested address" in seen


async def test_autopsies_are_measured_one_by_one_and_autopsy_shells_are_limited_in_number(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring sizes uses one thread, in short steps."""
    weigh, busy = TreeSize.measure, threading.Lock()

    def measure(tree: TreeSize, seconds: float) -> bool:
        assert seconds < 1 and busy.acquire(blocking=False)
        time.sleep(0.02)
        busy.release()
        return weigh(tree, seconds)

    monkeypatch.setattr(TreeSize, "measure", measure)
    await keep_autopsies(harness)
    uids = [await failed_job(harness, "exit 1") for _ in range(3)]
    # A running step of the engine may end after the monkeypatch is undone.
    await measured_autopsy(harness, uids[0])
    await harness.restart()
    assert all([(await measured_autopsy(harness, uid)).size for uid in uids])
    terminals = [await open_shell(harness, uid) for uid in (*[uids[0]] * MAX_SHELLS, uids[1])]
    with pytest.raises(TerminalRefused, match="already has 8 open shells"):
        await open_shell(harness, uids[0])
    for terminal in terminals:
        terminal.close()
