"""What failed replicas left: kept, looked at, copied, and gone in time (spec/operations#autopsies)."""

import asyncio
import threading
import time
from pathlib import Path

import pytest

from tests.contract.engines.conftest import PRIMARY, PYTHON, House
from tests.contract.engines.test_terminals import shown, sleeper
from tests.e2e.processes import commands, wait_until_gone
from trainshed.core.names import JobUid
from trainshed.core.terminals import Autopsy, Terminal, TerminalRefused, TerminalRequest
from trainshed.engines.local import autopsies
from trainshed.replica.supervisor.shells import MAX_SHELLS
from trainshed.replica.system.trees import TreeSize

HOUR = 3600 * 10**9


class Time:
    """A clock that moves when it is moved."""

    now = 10**18

    def __call__(self) -> int:
        return self.now


async def keeping(house: House) -> Time:
    """Have the engine keep what fails, for an hour."""
    time = Time()
    await house.restart(rules={"autopsy_ttl": HOUR}, now=time)
    return time


async def failed(house: House, script: str, **fields: object) -> JobUid:
    """A job whose primary has run `script` and is over, with its slots given back."""
    uid = await house.run("sh", "-c", script, **fields)
    await house.end(uid)
    await house.engine.release(uid, 1)
    house.forget(uid)
    return uid


async def look(house: House, uid: JobUid, **wish: object) -> Terminal:
    made = TerminalRequest(**{"is_terminal": False, **wish})  # pyright: ignore[reportArgumentType] - built by name
    return await house.engine.open_autopsy(uid, 1, PRIMARY, made)


async def weighed(house: House, uid: JobUid) -> Autopsy:
    """The job's only autopsy, once its size is known."""
    kept = house.engine._autopsies  # pyright: ignore[reportPrivateUsage] - to wait for it
    await kept._tasks.settled()  # pyright: ignore[reportPrivateUsage] - the same
    (autopsy,) = house.engine.autopsies(uid)
    return autopsy


async def test_no_secret_is_on_the_disk(house: House) -> None:
    """Redacted when it is captured: soon after the program is started, or when the service ends."""
    await keeping(house)
    secret = "tell-nobody-of-this"
    uid = await house.run("sleep", "100", environ=(("DB_PASSWORD", secret), ("SEEN", "shown")))
    await house.started(uid)
    await keeping(house)
    files = [path for path in house.data.rglob("*") if path.is_file()]
    assert any("shown" in path.read_text(errors="replace") for path in files)
    assert not [path for path in files if secret in path.read_text(errors="replace")]


async def test_only_what_failed_by_itself_is_kept(house: House) -> None:
    await keeping(house)
    assert house.engine.autopsies(await failed(house, "exit 0")) == ()
    uid = await sleeper(house)
    await house.engine.stop(uid, 1, 0)
    await house.exit(uid)
    await house.engine.release(uid, 1)
    house.forget(uid)
    assert house.engine.autopsies(uid) == ()
    by_signal = await failed(house, "kill -SEGV $$")
    assert (await weighed(house, by_signal)).signal == 11


async def test_a_terminal_begins_with_what_one_sees(house: House) -> None:
    await keeping(house)
    uid = await failed(house, "printf 'the \\033[31mlast\\033[0m words\\n'; exit 3")
    terminal = await look(house, uid, is_terminal=True)
    seen = await shown(terminal, b"exit\n")
    assert "exit code 3" in seen
    assert "sh -c" in seen
    # What the program wrote does not command the terminal of who reads it.
    assert "last" in seen
    assert "\x1b[31m" not in seen


@pytest.mark.parametrize("script", ["sleep 100; :' &", "while :; do (sleep 1 &); sleep 0.1; done'"])
async def test_nothing_runs_on_when_the_shell_is_left(house: House, mark: str, script: str) -> None:
    """Neither what it leaves nor a shell that stays, and whose orphans end all the time."""
    await keeping(house)
    uid = await failed(house, "exit 1")
    terminal = await look(house, uid)
    await terminal.write(f"trap '' HUP; sh -c ': {mark}; echo on; {script}\n".encode())
    assert b"on" in await terminal.read()
    left = commands(mark)
    assert left
    terminal.close()
    await asyncio.to_thread(wait_until_gone, left)


async def test_they_are_found_again_and_go_in_time(house: House) -> None:
    time = await keeping(house)
    uid = await failed(house, "exit 1")
    autopsy = await weighed(house, uid)
    await house.restart()
    assert await weighed(house, uid) == autopsy
    time.now += HOUR + 1
    await house.restart()
    assert house.engine.autopsies(uid) == ()
    assert not (house.data / "autopsies" / str(uid)).exists()
    with pytest.raises(TerminalRefused):
        await look(house, uid)


@pytest.mark.parametrize(("limit", "most"), [("MAX_BYTES", 6 << 20), ("MAX_AUTOPSIES", 1)])
async def test_the_oldest_goes_first_when_it_is_too_much(
    house: House, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(autopsies, limit, most)
    time = await keeping(house)
    # Bytes that no file system leaves out.
    fill = "head -c 4000000 /dev/urandom >big; exit 1"
    first = await failed(house, fill)
    await weighed(house, first)
    time.now += 1
    second = await failed(house, fill)
    await weighed(house, second)
    assert house.engine.autopsies(first) == ()
    assert house.engine.autopsies(second)


async def test_it_is_deleted_but_not_under_somebodys_feet(house: House) -> None:
    await keeping(house)
    uid = await failed(house, "exit 1")
    terminal = await look(house, uid)
    with pytest.raises(TerminalRefused, match="open"):
        await house.engine.delete_autopsy(uid, 1, PRIMARY)
    terminal.close()
    assert await house.engine.delete_autopsy(uid, 1, PRIMARY)
    assert not await house.engine.delete_autopsy(uid, 1, PRIMARY)
    assert house.engine.autopsies(uid) == ()


async def test_a_shell_has_todays_buckets_and_nobody_elses_users_or_addresses(
    house: House, tmp_path: Path
) -> None:
    """What its program had may be another project's by now, as is a replica's address."""
    await keeping(house)
    uid = await failed(house, "exit 1", buckets=(("gone", str(tmp_path)),))
    [other] = await house.allocate(uid)
    bind = f"import socket; socket.socket().bind(('{other.address}', 0))"
    look_around = f'ls /gcs; cat /proc/self/uid_map; {PYTHON} -c "{bind}"\n'
    terminal = await look(house, uid, buckets=(("now", str(tmp_path)),))
    seen = await shown(terminal, look_around.encode())
    if house.engine.capabilities().stable_hostname:
        assert seen.splitlines()[0] == "now"
    assert str(other.users) not in seen
    assert "Cannot assign requested address" in seen


async def test_they_are_weighed_one_by_one_and_shells_are_few(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weighing leaves threads to others, and its steps are short."""
    weigh, busy = TreeSize.measure, threading.Lock()

    def measure(tree: TreeSize, seconds: float) -> bool:
        assert seconds < 1 and busy.acquire(blocking=False)
        time.sleep(0.02)
        busy.release()
        return weigh(tree, seconds)

    monkeypatch.setattr(TreeSize, "measure", measure)
    await keeping(house)
    uids = [await failed(house, "exit 1") for _ in range(3)]
    # A step of the engine that ends may outlast it.
    await weighed(house, uids[0])
    await house.restart()
    assert all([(await weighed(house, uid)).size for uid in uids])
    terminals = [await look(house, uid) for uid in (*[uids[0]] * MAX_SHELLS, uids[1])]
    with pytest.raises(TerminalRefused, match="it has 8 open shells"):
        await look(house, uids[0])
    for terminal in terminals:
        terminal.close()
