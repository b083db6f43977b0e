"""Declares the protocol between a slot's shim, its zygote and an engine: files, documents and messages.

This module defines names and formats only. Runs on Python 3.6.

A slot is the directory of one replica of one attempt:

    journal             starts and attempt records of all runs (`journal` module). The shim locks the
                        file until all processes of the replica have exited (the fence).
    sock                the shim's Unix socket
    stopped-N           exists if run N of the replica (incarnation) must not start
    files/              all files that the program may write: work, home, tmp, ...
    ../hosts            /etc/hosts of all programs of the gang; changed in place
    ../lost-reducers    HOST:PORT of the lost reducers, which workers must not use; grows in place
    ../stopped          exists if the attempt was stopped: none of its replicas may start

Messages are JSON objects, one per line. The shim sends to each connection, in this order:
- `started` (at)
- any number of `lines` (n: total number of log lines), `metrics` (a trial has new measurements), and `note`
  (n, from 1 on; at, name, severity, text)
- `exited` (the record) or `lost` (cause, by_service)
If it rejects the start, it sends `refused` (cause, `REFUSED_*`) and nothing else. Responses to orders may
appear at any position.

The service sends orders to the shim:
- `stop` (grace, in ns; notice, see `preamble`, if the platform stops the program)
- `ping` (n): the response is `pong` (n) until the replica has ended
- `fault` (kind, a `FAULT_*`): has no effect after the program's end
- `write` (lines): adds lines to the program's log; the response is `written` (n), or `refused` (cause) while
  the disk is full
- `shell` (tty, rows, cols, term, command, label): from then on, the connection belongs to the shell (`shells`
  module)
- `port` (port: a number, or the name of a Unix socket in the program's directory): like `shell`
"""

import json
from functools import lru_cache
from typing import Any, Dict, NamedTuple, Sequence

from trainshed.replica.system import processes

Message = Dict[str, Any]

JOURNAL = "journal"
SOCKET = "sock"
HOSTS = "hosts"
FILES = "files"
STOPPED = "stopped"

PACKED_PROGRAM = "trainshed_program"
"""Name of the package that `trainshed run` builds from a program. Its modules copy the program to the working
directory and start it in another interpreter."""

REFUSED_HELD = "held"
REFUSED_KNOWN = "known"
REFUSED_STOPPED = "stopped"

NEVER_STARTED = "never started"
SHIM_LOST = "the replica's shim was killed; its program died with it"

FAULT_OOM = "oom"
"""A fault that a user orders (drill): the main process dies by SIGKILL, and its record shows a lack of
memory."""
FAULT_SEGV = "segv"
"""A fault that a user orders (drill): the main process gets SIGSEGV."""

LEVEL_OWN = "own-user"
"""The service runs as root. Each replica runs as separate users, in namespaces that it cannot leave."""
LEVEL_ROOT = "root"
"""The service and the programs run as root. Each program has its own namespaces."""
LEVEL_USER = "user"
"""The service runs as an ordinary user. Programs run as that user, in their own namespaces."""
LEVEL_SESSION = "session"
"""There are no namespaces; a program only has its own session."""


def stopped_mark(incarnation: int) -> str:
    """Return the name of the file in a replica's directory that prevents the start of a run (incarnation)."""
    return "%s-%d" % (STOPPED, incarnation)


class Program(NamedTuple):
    """Specifies the replica's program."""

    #: The program and its arguments.
    argv: "Sequence[str]"
    #: All environment variables of the program.
    environ: "dict[str, str]"
    #: The program's working directory; None = the replica's directory.
    directory: "str | None" = None
    #: Template of a Python environment, which is copied into the replica's directory. In a mount namespace,
    #: the program sees the copy at the template's path. None: the program needs no Python.
    python_template: "str | None" = None


class Isolation(NamedTuple):
    """Specifies the program's view of the machine. Paths are absolute."""

    #: Sandbox level (`LEVEL_*`).
    level: "str" = LEVEL_SESSION
    #: Hostname; None = the machine's hostname.
    hostname: "str | None" = None
    #: The program's hosts file; None = the machine's hosts file.
    hosts: "str | None" = None
    #: (first, count) of the machine's user IDs for the program (`LEVEL_OWN`). () = the shim's user.
    users: "Sequence[int]" = ()
    #: Directories whose content the program must not see; they look empty.
    hidden: "Sequence[str]" = ()
    #: Files whose content the program must not see; they look empty.
    covered: "Sequence[str]" = ()
    #: Directories that the program may only read, visible at their own paths, even inside hidden ones.
    read_only: "Sequence[str]" = ()
    #: Further mounts: (source, target, whether it is read-only).
    mounts: "Sequence[tuple[str, str, bool]]" = ()
    #: Device files in /dev, in addition to the harmless devices that all programs have.
    devices: "Sequence[str]" = ()
    #: (name, directory) of the buckets at /gcs/NAME.
    buckets: "Sequence[tuple[str, str]]" = ()
    #: Directory of the image's root file system; None = the machine's own root.
    image: "str | None" = None
    #: User of an image's program; None = the image's root user.
    image_user: "str | None" = None
    #: File of certificate authorities that the program trusts, visible at the usual paths.
    roots: "str | None" = None
    #: Size of /dev/shm in bytes; None = the kernel's default, half of the memory.
    shm_bytes: "int | None" = None


class Limits(NamedTuple):
    """Specifies the limits of the replica, and the directories of its control groups."""

    #: Memory limit in bytes; None = no limit.
    memory_limit: "int | None" = None
    #: Processor weight relative to other programs, 100 per processor; None = the weight of an ordinary
    #: process.
    cpu_weight: "int | None" = None
    #: Number of processes and threads; None = no limit.
    pids_limit: "int | None" = None
    #: Size of the job's disk in bytes; None = unknown.
    disk_limit: "int | None" = None
    #: Whether the replica is stopped if its files exceed `disk_limit`.
    disk_enforced: "bool" = False
    #: File that contains the time after which the program must not run (`deadline`); None = no deadline.
    deadline: "str | None" = None
    #: Number of seconds without progress after which the program is killed (`stall`); None = unlimited.
    stall_after: "float | None" = None
    #: Parent directories of the replica's control groups, by controller: memory, cpu, pids.
    bases: "Dict[str, str]" = {}  # noqa: RUF012 - nobody changes it
    #: Name of the replica's control groups.
    cgroup_name: "str" = ""


class Network(NamedTuple):
    """Specifies the replica's address, and the destinations of its endpoint."""

    #: The replica's address. Its endpoint listens on it.
    address: "str" = "127.0.0.1"
    #: A bind of this port to the wildcard address becomes a bind to `address`; None = no port.
    cluster_port: "int | None" = None
    #: Ports of the service, which the program can bind only on `address`.
    kept_ports: "Sequence[int]" = ()
    #: Port of the endpoint at `address`.
    storage_port: "int" = 0
    #: Unix socket to which the endpoint connects; None = there is no endpoint.
    storage_socket: "str | None" = None
    #: The replica's identity in one line of JSON, for `preamble`.
    identity: "str" = ""
    #: Unix socket of the service's REST APIs, which replace Google's APIs; None = not available.
    rest_socket: "str | None" = None
    #: Unix socket of the service's gRPC APIs, which replace Google's APIs; None = not available.
    grpc_socket: "str | None" = None
    #: PEM file with the private key and the certificate chain for Google's host names, for which the endpoint
    #: answers; None = the endpoint does not answer for them.
    certificate: "str | None" = None
    #: Port on which rank 0 of the job's processes listens; None = unknown.
    master_port: "int | None" = None
    #: Whether rank 0 belongs to this replica.
    is_primary: "bool" = False


def preamble(identity: "str", is_secure: "bool", notice: "str | None" = None) -> "bytes":
    """Return the first line of a connection to `Network.storage_socket`. `is_secure`: the client uses TLS and
    must receive https:// URLs. `notice`: the connection carries no requests. While it is open, the replica's
    metadata report this notice ("preempted", "maintenance")."""
    more = {"scheme": "https"} if is_secure else {}
    if notice:
        more["notice"] = notice
    if more:
        identity = json.dumps({**json.loads(identity), **more})
    return identity.encode("utf-8") + b"\n"


class Observation(NamedTuple):
    """Specifies the records about the replica, and their location."""

    #: Directory of the log segments and of the other records.
    logs: "str"
    #: Secrets to mask in the log.
    masked: "Sequence[str]" = ()
    #: Seconds between two measurements of the replica's resources, including its disk.
    usage_every: "float" = 10.0
    #: UUIDs of the replica's GPUs.
    gpus: "Sequence[str]" = ()
    #: Whether to record the measurements that the program reports (`metrics`).
    watch_metrics: "bool" = False
    #: Number of the job's reducers, if reports of the replica's program are recorded (`reduction_reports`).
    #: None = not recorded.
    reducers: "int | None" = None
    #: Whether the user receives a note if the program ends without using its reducers.
    reducers_expected: "bool" = False


class WarmStart(NamedTuple):
    """The settings of a warm start: the program starts in a fork of an interpreter that has imported its
    frameworks (docs/adr/0083)."""

    #: Unix socket of the preloader that forks the program; None = a cold start in its own interpreter.
    preloader: "str | None" = None
    #: Directory of the program's Python environment, as the program sees it.
    template: "str" = ""
    #: The modules that the preloader has imported, in a human-readable form.
    preloaded: "str" = ""
    #: The reason for a cold start, as a clause. None if the job did not request a warm start, or if the
    #: program starts warm.
    cold_because: "str | None" = None


class LaunchDocument(NamedTuple):
    """All inputs of a shim for the start of one run (incarnation) of a replica.

    As a message and on disk, it is flat: it contains the fields of all sections, so their names are unique.
    """

    #: Number of the replica's run (incarnation). The shim rejects a run that was started before.
    incarnation: "int"
    program: "Program"
    isolation: "Isolation"
    limits: "Limits"
    network: "Network"
    observation: "Observation"
    warm: "WarmStart" = WarmStart()

    def to_message(self) -> "Message":
        """Return a message for `from_message`. The message can be converted to JSON and back."""
        message: "Message" = {"incarnation": self.incarnation}
        for section in self[1:]:
            message.update(section._asdict())
        return message

    @classmethod
    def from_message(cls, message: "Message") -> "LaunchDocument":
        """Create a launch document from a message of any version of the service. Unknown fields are ignored,
        and missing fields get their defaults."""
        sections: "list[Any]" = [
            section(**{name: message[name] for name in section._fields if name in message})
            for section in (Program, Isolation, Limits, Network, Observation, WarmStart)
        ]
        return cls(message["incarnation"], *sections)


def parse_order(line: bytes) -> "tuple[str, LaunchDocument]":
    """Return the replica's directory (slot) and the launch document of an order to start a program."""
    message = json.loads(line.decode("utf-8"))
    return message["slot"], LaunchDocument.from_message(message["plan"])


def encode(message: "Message") -> bytes:
    return json.dumps(message).encode("utf-8") + b"\n"


class Lines:
    """Splits a byte stream into messages and keeps the incomplete rest for the next call."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> "list[Message]":
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        return [json.loads(part.decode("utf-8")) for part in parts if part]


def process_start(pid: int, proc: str = "/proc") -> int:
    """Return the start time of a process, or 0 if the process does not exist or the time is unknown.

    The start time is one number, built from the machine's boot and the kernel's ticks since then; later
    starts are larger. A process ID is unique only together with this number. A zombie counts as not existing,
    because it runs no code. `proc`: a /proc file system that lists the process by this ID.
    """
    fields = processes.read("%s/%d/stat" % (proc, pid)).rpartition(b")")[2].split()
    return 0 if not fields or fields[0] in (b"Z", b"X") else _boot() << _TICKS | int(fields[19])


def is_process(pid: int, start: int, proc: str = "/proc") -> bool:
    """Whether the process that started at `start` (`process_start`) is still running."""
    return process_start(pid, proc) == start > 0


@lru_cache(maxsize=None)
def _boot() -> int:
    """Return a number that identifies the machine's boot, or 0 if it is unknown. Needed because process IDs
    and ticks recur after a reboot."""
    boot = processes.read("/proc/sys/kernel/random/boot_id").replace(b"-", b"")
    return int(boot[:12] or b"0", 16)


_TICKS = 64
"""Number of bits of the ticks in a start time."""
