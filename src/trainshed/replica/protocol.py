"""What a slot's shim, its zygote and an engine say to each other: files of a slot, documents, messages.

Owns names and formats only; opens nothing but the files it is asked to read. Runs on Python 3.6.

A slot is the directory of one replica of one attempt:

    journal             what became of each incarnation (`journal` module); locked exclusively by the shim as long
                        as anything of the replica lives (the fence)
    sock                the shim's Unix socket
    stopped-N           incarnation N must not start any more
    files/              what the program may touch: work, home, tmp, ...
    ../hosts            shown to all programs of the gang as /etc/hosts; changed in place
    ../lost-reducers    HOST:PORT of the reducers that workers are to do without; grows in place
    ../stopped          the attempt was stopped: nothing of it starts any more

Messages are JSON objects, one per line. Shim to service, in this order, each at least once per connection
that lives long enough: `started` (at), any number of `lines` (n, in all), of a trial `metrics` (there are new ones), and
`note` (n, from 1 on; at, name, severity, text), then `exited` (the record) or `lost` (cause, by_service); or, as the only
message, `refused` (cause, `REFUSED_*`). Beside these `pong` (n) and `written` (n).

Service to shim: `stop` (grace, ns); `ping` (n), which the same connection hears `pong` of as long as the replica is not
over; `fault` (kind, a `FAULT_*`), which does nothing once the program is over; `write` (lines), which become the
program's in its log, and of which the same connection hears `written` (n), or `refused` (cause) while its disk is full; `shell` (tty, rows, cols, term, command,
label), after which the connection is that shell's alone (`terminal` module).
"""

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

JOURNAL = "journal"
SOCKET = "sock"
HOSTS = "hosts"
LOST_REDUCERS = "lost-reducers"
FILES = "files"
STOPPED = "stopped"

REFUSED_HELD = "held"
REFUSED_KNOWN = "known"
REFUSED_STOPPED = "stopped"
REFUSED_FULL = "full"
"""There was no room on the disk for its records or its files: nothing of it ran, and it may be started again."""

NEVER_STARTED = "never started"
SHIM_LOST = "the replica's shim was killed; its program died with it"

FAULT_KILL = "kill"
"""All processes of the replica die by SIGKILL, as from outside."""
FAULT_OOM = "oom"
"""The main process dies by SIGKILL, and the record says that it ran out of memory."""
FAULT_SEGV = "segv"
"""The main process gets SIGSEGV."""

LEVEL_OWN = "own-user"
"""The service is root; each replica runs as users of its own, in namespaces that it cannot undo."""
LEVEL_ROOT = "root"
"""The service is root and so is each program, in namespaces of its own."""
LEVEL_USER = "user"
"""The service is an ordinary user; programs run as that user, in namespaces of their own."""
LEVEL_SESSION = "session"
"""No namespaces: a session of its own is all that a program gets."""


def stopped_mark(incarnation: int) -> str:
    """The file in a slot that forbids an incarnation to start."""
    return "%s-%d" % (STOPPED, incarnation)


class LaunchDocument:
    """All that a shim needs to start one incarnation. Paths are absolute.

    `hosts`: the hosts file. `python_template`: copied into the slot ("" = nothing is: no Python is asked for, or it
    is used in place). `level`: sandbox level (`LEVEL_*`). `memory_limit`: bytes, 0 = none. `memory_base`,
    `cpu_base`, `pids_base`: control group directories under which the replica's own is made ("" = none).
    `pids_limit`: processes and threads, 0 = no limit. `hidden`: directories whose content the program must not see,
    `covered`: files likewise; `read_only`: directories it may only read, shown even inside hidden ones; `mounts`:
    [source, target, read-only] shown besides. `devices`: device files shown in /dev besides the harmless ones.
    `buckets`: [name, directory] of those shown as /gcs/NAME. `users`: [first, count] of the machine's user numbers
    that are the program's own (`LEVEL_OWN`), [] = none. `image`: directory of the root file system it sees ("" =
    the machine's), with `image_user`; `directory`: where it starts ("" = the slot's own working directory).
    `shm_bytes`: size of /dev/shm, 0 = half of the memory limit. `cluster_port`: a bind of this port on the wildcard
    address becomes one of `address` (0 = none does). `kept_ports`: the service's, which it can have on `address`
    alone. `storage_socket`: Unix socket behind the replica's endpoint (`address`:`storage_port`), "" = none;
    `identity`: JSON text that each connection to it begins with, as one line. `certificate`: PEM file, key and
    chain, by which Google's hosts are served at that endpoint as well ("" = they are not); `rest_socket`, `grpc_socket`:
    Unix sockets of the service, which answers for those of its APIs ("" = nobody does); `roots`: file of whom the
    program is to believe then, shown where systems keep theirs. `masked`: texts that never get into the log. `gpus`:
    uuids of its own. `usage_every`: seconds between two looks at what the
    replica uses, its disk included, 0 = nobody looks; `disk_limit`: bytes of the disk that was asked for, 0 = not known;
    `disk_enforced`: it is ended if its files take more. `stall_after`: seconds without any progress after which the program is ended
    (`stall` module), 0 = it is not watched. `memory_polling`: hold the memory limit by looking (`memory` module),
    as is done anyway where there is no `memory_base`. `watch_metrics`: take down what the program reports
    (`metrics` module). `reducers`: how many the job has if the replica reduces or is to use them, and is watched
    for it (`reduction` module), 0 = it is not; `verdict_after`: seconds without a report after which its processes
    are looked at, 0 = nobody looks.
    """

    FIELDS = (
        "incarnation",
        "argv",
        "environ",
        "hostname",
        "hosts",
        "address",
        "logs",
        "level",
        "python_template",
        "memory_limit",
        "memory_base",
        "cpu_weight",
        "cpu_base",
        "cgroup_name",
        "pids_base",
        "pids_limit",
        "hidden",
        "covered",
        "read_only",
        "mounts",
        "devices",
        "buckets",
        "users",
        "image",
        "image_user",
        "directory",
        "shm_bytes",
        "cluster_port",
        "kept_ports",
        "identity",
        "certificate",
        "roots",
        "masked",
        "gpus",
        "usage_every",
        "disk_limit",
        "disk_enforced",
        "storage_socket",
        "storage_port",
        "rest_socket",
        "grpc_socket",
        "stall_after",
        "memory_polling",
        "watch_metrics",
        "reducers",
        "verdict_after",
    )
    __slots__ = FIELDS

    def __init__(
        self,
        *,
        incarnation: int,
        argv: "list[str]",
        environ: "dict[str, str]",
        logs: str,
        hostname: str = "",
        hosts: str = "",
        address: str = "127.0.0.1",
        level: str = LEVEL_SESSION,
        python_template: str = "",
        memory_limit: int = 0,
        memory_base: str = "",
        cpu_weight: int = 0,
        cpu_base: str = "",
        cgroup_name: str = "",
        pids_base: str = "",
        pids_limit: int = 0,
        hidden: "tuple[str, ...]" = (),
        covered: "tuple[str, ...]" = (),
        read_only: "tuple[str, ...]" = (),
        mounts: "tuple[tuple[str, str, bool], ...]" = (),
        devices: "tuple[str, ...]" = (),
        buckets: "tuple[tuple[str, str], ...]" = (),
        users: "tuple[int, ...]" = (),
        image: str = "",
        image_user: str = "",
        directory: str = "",
        shm_bytes: int = 0,
        cluster_port: int = 0,
        kept_ports: "tuple[int, ...]" = (),
        identity: str = "",
        certificate: str = "",
        roots: str = "",
        masked: "tuple[str, ...]" = (),
        gpus: "tuple[str, ...]" = (),
        usage_every: float = 0.0,
        disk_limit: int = 0,
        disk_enforced: bool = False,
        storage_socket: str = "",
        storage_port: int = 0,
        rest_socket: str = "",
        grpc_socket: str = "",
        stall_after: float = 0.0,
        memory_polling: bool = False,
        watch_metrics: bool = False,
        reducers: int = 0,
        verdict_after: float = 0.0,
    ) -> None:
        self.incarnation = incarnation
        self.argv = argv
        self.environ = environ
        self.logs = logs
        self.hostname = hostname
        self.hosts = hosts
        self.address = address
        self.level = level
        self.python_template = python_template
        self.memory_limit = memory_limit
        self.memory_base = memory_base
        self.cpu_weight = cpu_weight
        self.cpu_base = cpu_base
        self.cgroup_name = cgroup_name
        self.pids_base = pids_base
        self.pids_limit = pids_limit
        self.hidden = hidden
        self.covered = covered
        self.read_only = read_only
        self.mounts = mounts
        self.devices = devices
        self.buckets = buckets
        self.users = users
        self.image = image
        self.image_user = image_user
        self.directory = directory
        self.shm_bytes = shm_bytes
        self.cluster_port = cluster_port
        self.kept_ports = kept_ports
        self.identity = identity
        self.certificate = certificate
        self.roots = roots
        self.masked = masked
        self.gpus = gpus
        self.usage_every = usage_every
        self.disk_limit = disk_limit
        self.disk_enforced = disk_enforced
        self.storage_socket = storage_socket
        self.storage_port = storage_port
        self.rest_socket = rest_socket
        self.grpc_socket = grpc_socket
        self.stall_after = stall_after
        self.memory_polling = memory_polling
        self.watch_metrics = watch_metrics
        self.reducers = reducers
        self.verdict_after = verdict_after

    def to_message(self) -> "Message":
        """What `LaunchDocument(**message)` makes the same document of, also after a way through JSON."""
        return {name: getattr(self, name) for name in self.FIELDS}


def encode(message: "Message") -> bytes:
    return json.dumps(message).encode("utf-8") + b"\n"


class Lines:
    """Cuts a byte stream into messages; keeps what is incomplete."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> "list[Message]":
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        return [json.loads(part.decode("utf-8")) for part in parts if part]


def process_start(pid: int) -> int:
    """When a process started: in which boot of the machine, and at which of the kernel's ticks in it; later ones are more.
    0 if there is none or the system does not say.

    A process id alone is no identity, the pair is. A zombie counts as gone: it runs nothing.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else _boot() << _TICKS | int(fields[19])


def is_process(pid: int, start: int) -> bool:
    """Whether the process that started at `start` (`process_start`) still runs. An earlier version noted ticks alone: then
    whichever boot it was."""
    now = process_start(pid)
    return now > 0 and start in (now, now & (1 << _TICKS) - 1)


def _boot() -> int:
    """Which boot of the machine this is: after another one ids and ticks come again. 0: the system does not say."""
    if not _boots:
        try:
            with open("/proc/sys/kernel/random/boot_id", "rb") as file:
                _boots.append(int(file.read().replace(b"-", b"")[:12], 16))
        except (OSError, ValueError):
            _boots.append(0)
    return _boots[0]


_TICKS = 64
"""Bits that the ticks have room in."""
_boots: "list[int]" = []
"""What was read of it: one, or none yet."""
