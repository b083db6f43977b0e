"""Idle shims, hosts files of a gang, and the trash: the parts that make starts fast."""

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.contract.engines.conftest import EngineHarness
from tests.e2e.processes import wait_until_gone
from tests.isolation import needs_mounts
from tests.waiting import until
from trainshed.core.names import ReplicaId
from trainshed.engines.local.spawner import POOL
from trainshed.engines.port import ProgramRules
from trainshed.replica import protocol


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def programs(shim: int) -> list[int]:
    """Return the main process of a shim that is ready."""
    main_ids: list[int] = []
    with contextlib.suppress(OSError):
        for child in children(shim):
            if Path(f"/proc/{child}/comm").read_text() == "ts-program\n":
                main_ids.append(child)
    return main_ids


def shims(zygote: int) -> list[int]:
    """Return the zygote's shims. At level `session` a warden process is between them."""
    below = children(zygote)
    for child in below.copy():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{child}/comm").read_text() == "ts-warden\n":
                below += children(child)
    return [shim for shim in below if programs(shim)]


async def idle_shims(harness: EngineHarness) -> list[tuple[int, int]]:
    """Return idle shims and their main processes, after the pool is filled."""
    await until(lambda: len(shims(harness.zygote())) >= POOL)
    return [(shim, programs(shim)[0]) for shim in shims(harness.zygote())]


async def test_gang_with_more_replicas_than_idle_shims_starts_with_additional_shims(
    harness: EngineHarness,
) -> None:
    """The zygote must not have loaded TLS and thus Python's threads, because each fork would become
    slower."""
    assert "_ssl." not in Path(f"/proc/{harness.zygote()}/maps").read_text()
    idle = await idle_shims(harness)
    replicas = [ReplicaId(1, index) for index in range(len(idle) + 2)]
    uid = harness.job()
    await harness.allocate(uid, replicas)
    await harness.engine.launch([harness.plan(uid, "sleep", "60", replica=r) for r in replicas])
    for replica in replicas:
        await harness.wait_for_start(uid, replica)
    serving = {harness.shim(uid, replica)["shim"] for replica in replicas}
    assert serving > {shim for shim, _ in idle}


async def test_program_starts_although_all_idle_shims_were_killed(harness: EngineHarness) -> None:
    for shim, program in await idle_shims(harness):
        os.kill(shim, signal.SIGKILL)
        await asyncio.to_thread(wait_until_gone, [program])
    uid = await harness.run("true")
    assert (await harness.exit(uid)).exit.exit_code == 0


async def test_idle_shims_end_when_their_zygote_process_is_killed(harness: EngineHarness) -> None:
    idle = await idle_shims(harness)
    os.kill(harness.zygote(), signal.SIGKILL)
    for pair in idle:
        for pid in pair:
            await asyncio.to_thread(wait_until_gone, [pid])


@needs_mounts
async def test_disk_mounted_after_the_start_of_the_shims_is_visible_to_programs(
    harness: EngineHarness, common_place: Path
) -> None:
    """The main processes of idle shims have left the machine's mount namespace before the mount happens."""
    if not harness.engine.capabilities().process_namespace:
        pytest.skip("without namespaces programs see what the service sees")
    disk = common_place / "disk"
    disk.mkdir()
    subprocess.run(["mount", "--bind", common_place, common_place], check=True)
    try:
        subprocess.run(["mount", "--make-shared", common_place], check=True)
        await harness.restart(rules={"visible": (str(common_place),)})
        await idle_shims(harness)
        subprocess.run(["mount", "-t", "tmpfs", "none", disk], check=True)
        (disk / "file").touch()
        uid = await harness.python(f"import os; print(os.listdir({str(disk)!r}))")
        assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
        assert harness.texts(uid) == ["['file']"]
    finally:
        subprocess.run(["umount", "-lR", common_place], check=True)


async def test_hosts_file_is_updated_for_running_programs(harness: EngineHarness) -> None:
    """spec/failures#lost-replicas: a program can resolve the names of its peers, including peers that start
    later."""
    if not harness.engine.capabilities().stable_hostname:
        return
    uid = harness.job()
    replicas = [ReplicaId(0, 0), ReplicaId(1, 0)]
    await harness.allocate(uid, replicas)
    watcher = "until grep later /etc/hosts; do sleep 0.01; done"
    await harness.engine.launch([harness.plan(uid, "sh", "-c", watcher, hosts=(("now", "127.64.0.1"),))])
    await harness.wait_for_start(uid)
    later = (("now", "127.64.0.1"), ("later", "127.64.0.2"))
    await harness.engine.launch([harness.plan(uid, "true", replica=replicas[1], hosts=later)])
    assert (await harness.exit(uid)).exit.exit_code == 0
    assert harness.texts(uid) == ["127.64.0.2\tlater"]


async def test_hosts_file_of_the_machine_contains_the_hostnames_of_the_gang(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """spec/program#hostnames: this applies without namespaces, as in a Pod. Lines of other programs remain in
    the hosts file, and earlier names of this gang's peers are removed."""
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1\tlocalhost\n10.1.0.7\tme.service me\n")
    begun = file.read_text()
    harness.rules = ProgramRules(protocol.LEVEL_SESSION)
    await harness.restart(hosts_file=file)
    assert harness.engine.capabilities().stable_hostname
    uid = harness.job()
    slots = await harness.allocate(uid, [ReplicaId(0, 0), ReplicaId(1, 0)])
    assert [slot.host for slot in slots] == [slot.hostname for slot in slots]
    watcher = f"until grep 10.1.0.9 {file}; do sleep 0.01; done"
    hosts = (("me", "10.1.0.7"), ("peer", "10.1.0.8"))
    await harness.engine.launch([harness.plan(uid, "sh", "-c", watcher, hosts=hosts)])
    await harness.wait_for_start(uid)
    written = file.read_text().removeprefix(begun).splitlines()
    assert written[1:] == ["10.1.0.8\tpeer"]
    await harness.engine.write_hosts(uid, 1, (("me", "10.1.0.7"), ("peer", "10.1.0.9")))
    assert (await harness.exit(uid)).exit.exit_code == 0
    assert harness.texts(uid) == ["10.1.0.9\tpeer"]
    assert "10.1.0.8" not in file.read_text()


async def test_trash_directory_is_emptied_after_a_job_is_released(harness: EngineHarness) -> None:
    uid = await harness.run("sh", "-c", "mkdir -p a/b; touch a/b/c; chmod 0 a/b")
    await harness.exit(uid)
    await harness.engine.release(uid, 1)
    harness.forget(uid)
    trash = harness.data / "slots" / ".trash"
    assert list(trash.iterdir())
    await until(lambda: not list(trash.iterdir()))
