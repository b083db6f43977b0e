"""Attempts of real programs to bypass the shim's check of each bind (`replica.sandbox.socket_calls`)."""

import errno
import json
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.replica.conftest import Place
from tests.contract.replica.relays import own_address
from tests.isolation import strongest
from tests.ports import free_port
from trainshed.replica.sandbox import call_filter
from trainshed.replica.supervisor import sidecars
from trainshed.replica.system import kernel
from trainshed.serve import certificates

OWN, OTHER_ADDRESS = own_address(0), own_address(1)
RESERVED_PORT = 23480
FIELDS = {"address": OWN, "cluster_port": 23470, "kept_ports": (RESERVED_PORT,)}

pytestmark = pytest.mark.skipif(
    not call_filter.is_known(), reason="no filter on this machine: it is NOT tested"
)

REPORTS_CALLS = """
import ctypes, errno, json, os, socket, struct, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return 0 if libc.syscall(*passed) >= 0 else ctypes.get_errno()
def bind(address, family=socket.AF_INET, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as one:
        try:
            one.bind(address)
        except OSError as error:
            return error.errno
        return one.getsockname()[0] if family != socket.AF_UNIX else one.getsockname()
def tell(**found):
    print(json.dumps(found))
"""


def reported_values(place: Place, program: str, *arguments: str, **fields: object) -> dict[str, object]:
    """Return the values that a program prints in its last line."""
    argv = [sys.executable, "-u", "-c", REPORTS_CALLS + program, *arguments]
    record = place.run(*argv, **(FIELDS | fields)).record()
    assert record["exit_code"] == 0, record["tail"]
    return json.loads(place.texts()[-1])


def compile_program(directory: Path, source: str) -> Path:
    """Compile a program at a place where replicas may run it."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("there is no C compiler: this attack is NOT tested")
    directory.chmod(0o755)
    code, program = directory / "attack.c", directory / "attack"
    code.write_text(source)
    subprocess.run([compiler, "-O1", "-pthread", "-o", str(program), str(code)], check=True)
    return program


def run(place: Place, program: Path, *arguments: str) -> list[str]:
    shown = [sys.prefix, sys.base_prefix, str(program.parent)]
    record = place.run(str(program), *arguments, **FIELDS, read_only=shown).record()
    assert record["exit_code"] == 0, record["tail"]
    return place.texts()


RACE = r"""
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
/* One thread binds what another one changes: the address, and with "unix" also what kind of socket it is. */
static volatile union { struct sockaddr_in in; struct sockaddr_un un; } given;
static struct sockaddr_in mine, theirs;
static volatile int by_unix, own, wanted;
static void *change(void *nothing) {
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    for (;;) {
        if (by_unix) memcpy((void *)&given, &local, sizeof mine);
        else memcpy((void *)&given, &mine, sizeof mine);
        if (by_unix) dup2(own, 100);
        for (volatile int pause = 0; pause < 3000; pause++);
        memcpy((void *)&given, &theirs, sizeof theirs);
        if (by_unix) dup2(wanted, 100);
        for (volatile int pause = 0; pause < 3000; pause++);
    }
    return nothing;
}
static int is_theirs(int handle) {
    struct sockaddr_in bound; socklen_t size = sizeof bound;
    getsockname(handle, (struct sockaddr *)&bound, &size);
    return bound.sin_family == AF_INET && bound.sin_addr.s_addr == theirs.sin_addr.s_addr;
}
int main(int count, char **words) {
    by_unix = count > 3;
    mine.sin_family = theirs.sin_family = AF_INET;
    inet_aton("127.0.0.1", &mine.sin_addr);
    inet_aton(words[1], &theirs.sin_addr);
    own = socket(AF_UNIX, SOCK_STREAM, 0); wanted = socket(AF_INET, SOCK_STREAM, 0);
    dup2(own, 100);
    pthread_t thread; pthread_create(&thread, 0, change, 0);
    int won = 0;
    for (int turn = 0; turn < atoi(words[2]) && !won; turn++) {
        int handle = by_unix ? 100 : socket(AF_INET, SOCK_STREAM, 0);
        bind(handle, (struct sockaddr *)&given, sizeof mine);
        won = is_theirs(by_unix ? wanted : handle);
        if (!by_unix) close(handle);
    }
    puts(won ? "had it" : "never");
    return 0;
}
"""


@pytest.mark.parametrize("turns", [2_000, pytest.param(20_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("way", [(), ("unix",)], ids=["address", "socket"])
# The check is the same at each level.
@pytest.mark.parametrize("place", [strongest()], indirect=True)
def test_bind_check_is_safe_against_time_of_check_races(
    place: Place, tmp_path_factory: pytest.TempPathFactory, way: tuple[str, ...], turns: int
) -> None:
    if way and not has_landlock():
        pytest.skip("this kernel's Landlock knows no network: that race is open, and NOT tested")
    program = compile_program(tmp_path_factory.mktemp("attack"), RACE)
    assert run(place, program, OTHER_ADDRESS, str(turns), *way) == ["never"]


def has_landlock() -> bool:
    try:
        return kernel.syscall(444, "landlock", 0, 0, 1) >= 4
    except OSError:
        return False


CALLS_IN_32_BIT = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <sys/mman.h>
/* The calls of 32-bit programs, from a program of 64 bits. */
static long call(long number, long first, long second, long third) {
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(first), "c"(second), "d"(third)
        : "memory", "r8", "r9", "r10", "r11");
    return (int)result;
}
int main(int count, char **words) {
    struct sockaddr_in *given = mmap(
        0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    unsigned *arguments = (unsigned *)(given + 1);
    given->sin_family = AF_INET;
    inet_aton(words[1], &given->sin_addr);
    long handle = call(359, AF_INET, SOCK_STREAM, 0);
    arguments[0] = handle; arguments[1] = (unsigned)(long)given; arguments[2] = sizeof *given;
    printf("%d ", call(20, 0, 0, 0) > 0);
    printf("%d ", handle >= 0);
    printf("%ld ", call(361, handle, (long)given, sizeof *given));
    printf("%ld ", call(102, 2, (long)arguments, 0));
    printf("%ld ", call(359, AF_INET, SOCK_STREAM, 262));
    printf("%ld\n", call(425, 8, (long)given, 0));
    return 0;
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="32-bit calls of x86 only")
def test_32_bit_programs_cannot_bind(place: Place, tmp_path_factory: pytest.TempPathFactory) -> None:
    program = compile_program(tmp_path_factory.mktemp("attack"), CALLS_IN_32_BIT)
    missing = -errno.ENOSYS
    (line,) = run(place, program, OTHER_ADDRESS)
    if line.startswith("0"):
        pytest.skip("this kernel runs no 32-bit calls")
    assert line == f"1 1 {missing} {missing} {-errno.EPROTONOSUPPORT} {missing}"


def test_socket_calls_that_cannot_be_checked_fail_as_unsupported(place: Place) -> None:
    """Calls with x32 numbers, requests of io_uring, and sockets that Landlock does not check.
    Libraries behave as on a kernel without these features."""
    asks = """
def made(family, protocol):
    try:
        socket.socket(family, socket.SOCK_STREAM, protocol).close()
    except OSError as error:
        return error.errno
uring = [call(n, 8, bytes(120), 0, 0, 0) for n in (425, 426, 427)]
tell(mptcp=made(socket.AF_INET, 262), six=made(socket.AF_INET6, 262), smc=made(43, 0),
     tcp=made(socket.AF_INET, 6), uring=uring,
     x32=[call(0x40000000 + 49, 0, 0, 0), call(0x40000000 + 39)])
"""
    refused, none = errno.EPROTONOSUPPORT, errno.ENOSYS
    answers = reported_values(place, asks)
    # Other CPU architectures have no x32, and these numbers are unused there.
    assert (answers.pop("uring"), answers.pop("x32")) == ([none] * 3, [none] * 2)
    assert answers == {"mptcp": refused, "six": refused, "smc": errno.EAFNOSUPPORT, "tcp": None}


def test_bind_call_made_by_the_shim_behaves_like_a_bind_call_of_the_program(place: Place) -> None:
    asks = f"""
def twice():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        try:
            one.bind(("127.0.0.1", 0))
        except OSError as error:
            return error.errno
def in_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(bind(("127.0.0.1", 0))))
    thread.start()
    thread.join()
    return found[0]
def owner():
    bind("local", socket.AF_UNIX)
    return os.stat("local").st_uid == os.geteuid()
tcp = socket.socket()
tell(
    own=bind(("{OWN}", 0)), loopback=bind(("127.0.0.1", 0)), anywhere=bind(("0.0.0.0", 0)),
    another=bind(("{OTHER_ADDRESS}", 0)), mapped=bind(("::ffff:{OTHER_ADDRESS}", 0), socket.AF_INET6),
    kept=bind(("0.0.0.0", {RESERVED_PORT})), kept_here=bind(("127.0.0.1", {RESERVED_PORT})),
    kept_own=bind(("{OWN}", {RESERVED_PORT})),
    cluster=bind(("0.0.0.0", 23470)), cluster_six=bind(("::", 23470), socket.AF_INET6),
    datagrams=bind(("127.0.0.1", 0), socket.AF_INET, socket.SOCK_DGRAM),
    unknown=bind(("192.0.2.1", 0)), twice=twice(), thread=in_thread(), owner=owner(),
    nothing=call({call_filter.number_of("bind")}, tcp.fileno(), 8, 16),
    closed=call({call_filter.number_of("bind")}, 999, struct.pack("=HHIQ", 2, 0, 0, 0), 16),
    long=call({call_filter.number_of("bind")}, tcp.fileno(), bytes(200), 200),
    short=call({call_filter.number_of("bind")}, tcp.fileno(), bytes(4), 4),
    unspecified=call({call_filter.number_of("bind")}, tcp.fileno(), bytes(16), 16),
)
"""
    answers = reported_values(place, asks)
    assert answers == {
        "own": OWN,
        "loopback": "127.0.0.1",
        "anywhere": "0.0.0.0",
        "another": errno.EADDRNOTAVAIL,
        "mapped": errno.EADDRNOTAVAIL,
        "kept": errno.EADDRINUSE,
        "kept_here": errno.EADDRINUSE,
        "kept_own": OWN,
        "cluster": OWN,
        "cluster_six": f"::ffff:{OWN}",
        "datagrams": "127.0.0.1",
        "unknown": errno.EADDRNOTAVAIL,
        "twice": errno.EINVAL,
        "thread": "127.0.0.1",
        "owner": True,
        "nothing": errno.EFAULT,
        "closed": errno.EBADF,
        "long": errno.EINVAL,
        "short": errno.EINVAL,
        "unspecified": 0,
    }


def test_program_reaches_its_cluster_port_at_localhost(
    place: Place, files: certificates.Interception
) -> None:
    asks = """
def reached(host):
    with socket.create_server((host, 23470)) as server:
        with socket.create_connection(("localhost", 23470), 5):
            return server.accept()[0].getsockname()[0]
tell(wildcard=reached("0.0.0.0"), loopback=reached("127.0.0.1"))
"""
    endpoint = {"certificate": str(files.certificate), "storage_port": 23471}
    assert reported_values(place, asks, **endpoint) == {"wildcard": OWN, "loopback": OWN}
    while_others_wait = """
server = socket.create_server(("0.0.0.0", 23470), backlog=0)
for _ in range(4):
    threading.Thread(target=socket.create_connection, args=(("localhost", 23470),)).start()
while ":5BAE 02 " not in open("/proc/net/tcp").read(): pass  # a connection to the port that waits
bound = bind(("0.0.0.0", 0))
for _ in range(4): server.accept()
tell(bound=bound)
"""
    assert reported_values(place, while_others_wait, **endpoint) == {"bound": "0.0.0.0"}


def test_bind_cannot_use_the_shims_privileges(place: Place) -> None:
    """The program tries a privileged port."""
    with socket.socket() as tried:
        try:
            tried.bind((OWN, 83))
        except OSError:
            pytest.skip("this user may not bind such a port: nothing could be got by him")
    assert reported_values(place, f"tell(port=bind(('{OWN}', 83)))") == {"port": errno.EACCES}


def test_undumpable_program_cannot_bind_foreign_addresses(place: Place) -> None:
    asks = f"""
call({157 if platform.machine() == "x86_64" else 167}, 4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
tell(another=bind(("{OTHER_ADDRESS}", 0)), kept=bind(("0.0.0.0", {RESERVED_PORT})))
"""
    answers = reported_values(place, asks)
    assert isinstance(answers["another"], int)
    assert isinstance(answers["kept"], int)


def rank_notes(place: Place, program: str, **fields: object) -> list[str]:
    """Return the texts of the notes on rank 0 that a program caused."""
    line = place.run(sys.executable, "-u", "-c", REPORTS_CALLS + program, **(FIELDS | fields))
    texts: list[str] = []
    while (message := line.hear("note", "exited"))["e"] == "note":
        if message["name"] == sidecars.RANK_CLAIMED:
            texts.append(message["text"])
    assert message["record"]["exit_code"] == 0, message["record"]["tail"]
    return texts


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_worker_that_listens_as_rank_0_causes_a_single_note(place: Place, host: str) -> None:
    """spec/program#ranks: rank 0 listens on MASTER_PORT, and a worker has another rank."""
    port = free_port()
    # The second bind fails, as in a job whose primary already listens.
    program = f"one = socket.socket(); one.bind(({host!r}, {port})); bind(({host!r}, {port}))"
    (text,) = rank_notes(place, program, master_port=port)
    assert f"port {port}" in text
    assert "NODE_RANK" in text


@pytest.mark.parametrize(
    "program",
    [
        "bind(('0.0.0.0', 0)); bind(('0.0.0.0', {other})); bind('/tmp/s', socket.AF_UNIX)",
        "one = socket.socket(); one.connect_ex(('127.0.0.1', {port}))",
        "one = socket.socket(); call(49, one.fileno(), b'x', 1)",
    ],
)
def test_socket_calls_that_do_not_listen_as_rank_0_cause_no_rank_note(place: Place, program: str) -> None:
    port = free_port()
    text = program.format(port=port, other=free_port())
    assert rank_notes(place, text, master_port=port) == []


@pytest.mark.parametrize("count", [1, 2])
def test_primary_causes_a_note_only_if_a_second_process_listens_as_rank_0(place: Place, count: int) -> None:
    """Processes that a program starts inherit RANK=0, unless it sets their ranks."""
    port = free_port()
    program = f"one = socket.socket(); one.bind(('0.0.0.0', {port}))"
    program += f"; bind(('0.0.0.0', {port}))" * (count - 1)
    assert len(rank_notes(place, program, master_port=port, is_primary=True)) == count - 1
