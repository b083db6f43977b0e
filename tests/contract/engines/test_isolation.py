"""Isolation of hostile programs (docs/security.md), tested with programs that attempt the attacks."""

import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.contract.engines.conftest import PRIMARY, PYTHON, EngineHarness, open_harness
from tests.contract.ordinary_user import NOBODY
from tests.contract.runtimes.rootfs import image_root
from tests.e2e.hostile.attack_setup import readable_directory
from tests.ports import free_port
from trainshed.core.launch import LaunchPlan, Limits, Software
from trainshed.core.lifecycle.replica_events import ReplicaLost
from trainshed.core.names import ReplicaId
from trainshed.engines.port import LevelUnavailable
from trainshed.replica.protocol import LEVEL_OWN, LEVEL_SESSION, LEVEL_USER
from trainshed.replica.supervisor import journal

HAS_IPV6 = Path("/proc/net/if_inet6").exists()

_SERVER = """
import socket, sys, threading
def serve():
    server = socket.socket(); server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(({wildcard!r}, 2222)); server.listen()
    print("listening", flush=True)
    peer, _ = server.accept()
    print("heard", peer.recv(64).decode(), flush=True)
"""
_IN_MAIN_THREAD = "serve()\n"
_IN_ANOTHER_THREAD = "thread = threading.Thread(target=serve); thread.start(); thread.join()\n"


async def test_cpu_weight_of_a_program_follows_its_vcpus(harness: EngineHarness) -> None:
    usual, shares = {"cpu.shares": 1024, "cpu.weight": 100}, list[float]()
    for vcpus in (1, 2, 4, 384):
        uid = await harness.run("sleep", "60", limits=Limits(cpu_weight=vcpus * 100))
        await harness.wait_for_start(uid)
        for group in map(Path, journal.Entries(str(harness.slot(uid))).groups):
            shares += [int(f.read_text()) / usual[f.name] for f in group.iterdir() if f.name in usual]
    if not shares:
        pytest.skip("this machine's control groups are not ours to make")
    assert shares == [0.25, 0.5, 1, 1]


async def test_each_replica_can_bind_the_cluster_port_on_the_wildcard_address(harness: EngineHarness) -> None:
    """spec/program#hostnames: every replica can bind port 2222 at the same time. This includes
    programs that use only 0.0.0.0 or ::, in the main thread or in another one."""
    calls = [("0.0.0.0", _IN_MAIN_THREAD), ("0.0.0.0", _IN_ANOTHER_THREAD)]
    if HAS_IPV6:
        calls.append(("::", _IN_MAIN_THREAD))
    uid = harness.job()
    slots = await harness.allocate(uid, [ReplicaId(0, index) for index in range(len(calls))])
    plans: list[LaunchPlan] = []
    for slot, (wildcard, call) in zip(slots, calls, strict=True):
        program = _SERVER.format(wildcard=wildcard) + call
        if wildcard == "::":
            program = program.replace("socket.socket()", "socket.socket(socket.AF_INET6)")
        argv = PYTHON, "-c", program
        plans.append(harness.plan(uid, *argv, replica=slot.replica, address=slot.address))
    await harness.engine.launch(plans)
    await harness.until(lambda: all("listening" in harness.texts(uid, slot.replica) for slot in slots))
    for slot in slots:
        with socket.create_connection((slot.address, 2222)) as connection:
            connection.sendall(str(slot.replica).encode())
    for slot in slots:
        assert (await harness.exit(uid, slot.replica)).exit.exit_code == 0
        assert harness.texts(uid, slot.replica)[-1] == f"heard {slot.replica}"


async def test_program_cannot_bind_the_ports_of_a_stopped_service(harness: EngineHarness) -> None:
    """spec/submit#refusals, spec/runtimes: a program on such a port would receive the tokens of the
    service's callers, and would prevent the service from starting."""
    port = free_port()
    program = (
        "import ctypes, os, socket, struct\n"
        "for host in ('127.0.0.1', '0.0.0.0'):\n"
        f"    try: socket.socket().bind((host, {port})); print(host)\n"
        "    except OSError as error: print(error.errno)\n"
        "one = socket.socket()\n"
        f"nothing = struct.pack('=H', 0) + struct.pack('>H', {port}) + bytes(12)\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(ctypes.get_errno() if libc.bind(one.fileno(), nothing, 16) else one.getsockname())\n"
        "two = socket.socket()\n"
        f"two.bind((os.environ['OWN'], {port})); print(two.getsockname()[1])\n"
    )
    await harness.restart(kept_ports=(port,))
    uid = harness.job()
    (slot,) = await harness.allocate(uid, [PRIMARY])
    plan = harness.plan(uid, PYTHON, "-c", program, address=slot.address, environ=(("OWN", slot.address),))
    await harness.engine.launch([plan])
    assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
    assert harness.texts(uid) == ["98"] * 3 + [str(port)]


def _level(harness: EngineHarness) -> str:
    return harness.engine.capabilities().isolation


@pytest.fixture
def step_sockets() -> Iterator[Path]:
    """A directory with two subdirectories, each with a socket named like those of Slurm's steps.
    `spool` belongs to the directory's owner, `others` to another user."""
    with tempfile.TemporaryDirectory(dir=readable_directory()) as place, contextlib.ExitStack() as opened:
        Path(place).chmod(0o755)
        for name, owner in (("spool", 0), ("others", NOBODY)):
            directory = Path(place, name)
            directory.mkdir()
            directory.chmod(0o755)
            socket_of_a_step = opened.enter_context(socket.socket(socket.AF_UNIX))
            socket_of_a_step.bind(str(directory / "node1_7.0"))
            os.chown(directory / "node1_7.0", owner, owner)
        yield Path(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="slurmd is root, and others' sockets are not its")
async def test_program_cannot_reach_sockets_of_slurm_steps(
    harness: EngineHarness, step_sockets: Path
) -> None:
    """docs/slurm.md, "Isolation between users": a step obeys every process with its user ID. A
    socket of another user with the same name stays visible."""
    if _level(harness) == LEVEL_SESSION:
        pytest.skip("without namespaces files are as their bits say")
    listed = f"[os.listdir({str(step_sockets)!r} + name) for name in ('/spool', '/others')]"
    uid = await harness.python(f"import os; print({listed})")
    assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
    assert harness.texts(uid) == ["[[], ['node1_7.0']]"]


async def test_hidden_directory_inside_a_visible_directory_stays_hidden_from_programs(
    harness: EngineHarness,
) -> None:
    """docs/security.md: a directory that the operator shows to programs may contain the service's
    data, and may be in a hidden directory, such as a home directory."""
    if _level(harness) == LEVEL_SESSION:
        pytest.skip("without namespaces files are as their bits say")
    shown = harness.data.parent
    (shown / "lent").write_text("of use")
    await harness.restart(hidden=(shown.parent, harness.data), rules={"visible": (str(shown),)})
    secret = harness.data / "trainshed.db"
    secret.write_text("a secret")
    program = (
        "import os\n"
        f"print(open({str(shown / 'lent')!r}).read(), os.path.exists({str(secret)!r}))\n"
        "open('mine', 'w').write('x')\n"
        f"try: open({str(shown / 'new')!r}, 'w')\n"
        "except OSError: print('read-only')\n"
    )
    uid = await harness.python(program)
    assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
    assert harness.texts(uid) == ["of use False", "read-only"]


async def test_hidden_directory_stays_hidden_in_an_image(harness: EngineHarness, tmp_path: Path) -> None:
    """The same applies to a program in a container image, which sees nothing else of the machine."""
    if not harness.engine.capabilities().images:
        pytest.skip("no images can be shown at this level")
    image, shown = image_root(tmp_path / "root"), harness.data.parent
    (shown / "lent").write_text("of use")
    await harness.restart(hidden=(shown.parent, harness.data), rules={"visible": (str(shown),)})
    secret = harness.data / "trainshed.db"
    secret.write_text("a secret")
    program = f"cat {shown}/lent; echo; ls {harness.data}; cat {secret} 2>/dev/null || echo hidden"
    uid = await harness.run("sh", "-c", program, software=Software(image=image))
    assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
    assert harness.texts(uid) == ["of use", "hidden"]


async def test_directories_missing_in_an_image_are_created_for_its_program(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """The creator of the mount points has more rights than the program. Links of the image must not
    lead it out of the image."""
    if not harness.engine.capabilities().images:
        pytest.skip("no images can be shown at this level")
    image = image_root(tmp_path / "root")
    assert image.directory
    root, outside = Path(image.directory), tmp_path / "outside"
    (root / "w").symlink_to(f"/proc/1/root{outside}")
    (root / "tmp").rmdir()
    (root / "tmp").symlink_to("/nowhere")
    outside.mkdir()
    # The mount point /var/hypertune requires the directory /var.
    program = "mkdir /var/mine && echo x > /tmp/x && echo ${PWD##*/}"
    software = Software(image=replace(image, workdir="/w/made"))
    uid = await harness.run("sh", "-c", program, software=software)
    assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
    assert harness.texts(uid) == ["made"]
    assert not any(outside.iterdir())


async def test_image_user_outside_the_replicas_range_is_rejected(
    harness: EngineHarness, tmp_path: Path
) -> None:
    """The next user number belongs to another replica."""
    if _level(harness) != LEVEL_OWN:
        pytest.skip("there are no users of its own at this level")
    image = replace(image_root(tmp_path / "root"), user="65536")
    end = await harness.end(await harness.run("id", software=Software(image=image)))
    assert isinstance(end, ReplicaLost)
    assert "65536:0, but a replica only has the users and groups 0 to 65535" in end.cause


# The two directories are created in the same way at all levels with namespaces. Only their owners differ.
@pytest.mark.parametrize(("place", "level"), [("/tmp", LEVEL_OWN), ("/var/tmp", LEVEL_USER)])
async def test_temporary_files_are_private_to_a_replica(place: str, level: str) -> None:
    """This holds regardless of the data directory's place. With the data directory in /tmp, two
    programs once shared /tmp/param.txt."""
    name = f"{os.getpid()}.txt"
    program = (
        "import os, tempfile\n"
        f"for path in ('/tmp/{name}', '/var/tmp/kept-{name}', '/dev/shm/{name}', 'mine'):\n"
        "    try: print(open(path).read())\n"
        "    except FileNotFoundError: open(path, 'w').write(os.environ['NAME'])\n"
        "print(tempfile.gettempdir(), os.path.exists(os.environ['HOME']))\n"
    )
    with tempfile.TemporaryDirectory(dir=place, prefix="trainshed-") as data:
        async with open_harness(Path(data), level) as harness:
            for text in ("one", "two"):
                uid = await harness.python(program, environ=(("NAME", text),))
                assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
                assert harness.texts(uid) == ["/tmp True"], "each finds none of the other's"
            # A restarted program finds the files of its predecessor.
            again = harness.plan(uid, PYTHON, "-c", program, environ=(("NAME", "-"),), incarnation=2)
            await harness.engine.launch([again])
            await harness.until(lambda: bool(harness.ends(uid, 2)))
            assert harness.texts(uid)[-4:] == ["two", "two", "two", "/tmp True"]
    assert not Path("/tmp", name).exists() and not Path(f"/var/tmp/kept-{name}").exists()


async def test_needed_directories_below_tmp_are_visible_in_private_tmp(tmp_path: Path) -> None:
    """Programs have a private /tmp, but a cache or a certificate file may be in the machine's /tmp.
    The directory that programs run in may be below a shown directory."""
    place = Path("/var/tmp" if str(tmp_path).startswith("/tmp/") else tmp_path)
    with (
        tempfile.TemporaryDirectory(dir=place) as data,
        tempfile.TemporaryDirectory(dir="/tmp") as lent,
        tempfile.TemporaryDirectory(dir="/tmp") as cache,
        tempfile.TemporaryDirectory(dir="/tmp") as other,
    ):
        async with open_harness(Path(data), None) as harness:
            if _level(harness) == LEVEL_SESSION:
                pytest.skip("without namespaces there is one /tmp")
            Path(lent, "certificates").mkdir()
            read_only = (*harness.options["read_only"], Path(lent, "certificates"))
            hidden = (harness.data, Path(cache))
            await harness.restart(hidden=hidden, rules={"visible": (lent,)}, read_only=read_only)
            program = (
                "import os\n"
                f"print(os.listdir({lent!r}), os.path.exists({cache!r}))\n"
                f"open('/tmp/mine', 'w').write('x'); print(os.path.exists({other!r}))\n"
            )
            uid = await harness.python(program)
            assert (await harness.exit(uid)).exit.exit_code == 0, harness.texts(uid)
            assert harness.texts(uid) == ["['certificates'] False", "False"]


async def test_visible_directory_below_dev_is_read_only(harness: EngineHarness) -> None:
    """Data of many jobs is in memory, if the machine has enough."""
    if _level(harness) == LEVEL_SESSION:
        pytest.skip("without namespaces files are as their bits say")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shown:
        Path(shown).chmod(0o777)
        await harness.restart(rules={"visible": (shown,)})
        uid = await harness.python(f"open('{shown}/new', 'w')")
        assert (await harness.exit(uid)).exit.exit_code == 1
        assert "Read-only file system" in str(harness.texts(uid)[-1])


async def test_program_sees_only_harmless_devices(harness: EngineHarness) -> None:
    """A program must not see GPUs of other replicas, disks, or kernel memory."""
    if not harness.engine.capabilities().process_namespace:
        pytest.skip("without namespaces there is one /dev")
    uid = await harness.python("import os; print(*sorted(os.listdir('/dev')))")
    assert (await harness.exit(uid)).exit.exit_code == 0
    assert harness.texts(uid) == ["fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"]


async def test_unavailable_isolation_level_fails_the_start(data: Path) -> None:
    """The start fails instead of silently using a weaker level than the operator demands."""

    async def start(level: str) -> None:
        harness = EngineHarness(data, level)
        try:
            await harness.engine.start()
        finally:
            await harness.engine.close()

    with pytest.raises(LevelUnavailable, match="The isolation 'none' does not exist"):
        await start("none")
    if os.geteuid() != 0:
        with pytest.raises(LevelUnavailable, match="the service does not run as root"):
            await start(LEVEL_OWN)


async def test_program_killed_during_a_bind_call_ends_without_waiting_for_the_call(
    harness: EngineHarness,
) -> None:
    """A thread that is killed while the shim decides about its bind leaves no waiting process behind."""
    program = (
        "import os, signal, socket, threading, time\n"
        "def bind():\n"
        "    while True:\n"
        "        with socket.socket() as one:\n"
        "            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "            one.bind(('0.0.0.0', 2222))\n"
        "for _ in range(4): threading.Thread(target=bind, daemon=True).start()\n"
        "print('up', flush=True)\n"
        "time.sleep(0.2)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    uid = await harness.python(program)
    assert (await harness.exit(uid)).exit.signal == signal.SIGKILL
