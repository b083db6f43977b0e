"""What a slot's shim, its zygote and an engine say to each other: files of a slot, documents, messages.

Owns names and formats only; opens nothing but the files it is asked to read. Runs on Python 3.6.

A slot is the directory of one replica of one attempt:

    journal             what became of each incarnation (`journal` module); locked exclusively by the shim as
    long
                        as anything of the replica lives (the fence)
    sock                the shim's Unix socket
    stopped-N           incarnation N must not start any more
    files/              what the program may touch: work, home, tmp, ...
    ../hosts            shown to all programs of the gang as /etc/hosts; changed in place
    ../lost-reducers    HOST:PORT of the reducers that workers are to do without; grows in place
    ../stopped          the attempt was stopped: nothing of it starts any more

Messages are JSON objects, one per line. Shim to service, in this order, each at least once per connection
that lives long enough: `started` (at), any number of `lines` (n, in all), of a trial `metrics` (there are new
ones), and `note` (n, from 1 on; at, name, severity, text), then `exited` (the record) or `lost` (cause,
by_service); or, as the only message, `refused` (cause, `REFUSED_*`). Beside these `pong` (n) and `written`
(n).

Service to shim: `stop` (grace, ns); `ping` (n), which the same connection hears `pong` of as long as the
replica is not over; `fault` (kind, a `FAULT_*`), which does nothing once the program is over; `write`
(lines), which become the program's in its log, and of which the same connection hears `written` (n), or
`refused` (cause) while its disk is full; `shell` (tty, rows, cols, term, command, label), after which the
connection is that shell's alone (`shells` module).
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
"""There was no room on the disk for its records or its files: nothing of it ran, and it may be started
again."""

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
    """All that a shim needs to start one incarnation. Paths are absolute."""

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
        #: Its number; one that was started before is refused.
        self.incarnation = incarnation
        #: The program and its arguments.
        self.argv = argv
        #: All of its environment.
        self.environ = environ
        #: Directory of the log segments, and of what is taken down beside them.
        self.logs = logs
        #: "" = the machine's.
        self.hostname = hostname
        #: The hosts file; "" = the machine's.
        self.hosts = hosts
        #: The replica's own, on which its endpoint listens as well.
        self.address = address
        #: Sandbox level (`LEVEL_*`).
        self.level = level
        #: Copied into the slot; "" = nothing is: no Python is asked for, or it is used in place.
        self.python_template = python_template
        #: Bytes; 0 = none.
        self.memory_limit = memory_limit
        #: Control group directory under which the replica's own is made; "" = none. Likewise `cpu_base`,
        #: `pids_base`.
        self.memory_base = memory_base
        #: Its share of the processors, 100 for each; 0 = as any other process.
        self.cpu_weight = cpu_weight
        self.cpu_base = cpu_base
        #: What its control groups are called.
        self.cgroup_name = cgroup_name
        self.pids_base = pids_base
        #: Processes and threads; 0 = no limit.
        self.pids_limit = pids_limit
        #: Directories whose content the program must not see.
        self.hidden = hidden
        #: Files whose content it must not see.
        self.covered = covered
        #: Directories that it may only read, shown even inside hidden ones.
        self.read_only = read_only
        #: (source, target, whether it is read-only), shown besides.
        self.mounts = mounts
        #: Device files shown in /dev besides the harmless ones.
        self.devices = devices
        #: (name, directory) of those shown as /gcs/NAME.
        self.buckets = buckets
        #: (first, count) of the machine's user numbers that are the program's own (`LEVEL_OWN`); () = none.
        self.users = users
        #: Directory of the root file system that it sees; "" = the machine's.
        self.image = image
        #: As whom the program of an image runs; "" = its root.
        self.image_user = image_user
        #: Where it starts; "" = the slot's own working directory.
        self.directory = directory
        #: Size of /dev/shm; 0 = half of the memory limit.
        self.shm_bytes = shm_bytes
        #: A bind of this port on the wildcard address becomes one of `address`; 0 = none does.
        self.cluster_port = cluster_port
        #: The service's own, which the program can have on `address` alone.
        self.kept_ports = kept_ports
        #: JSON text that each connection to `storage_socket` begins with, as one line.
        self.identity = identity
        #: PEM file, key and chain, by which Google's hosts are served at the endpoint as well; "" = they are
        #: not.
        self.certificate = certificate
        #: File of whom the program is to believe then, shown where systems keep theirs; "" = none.
        self.roots = roots
        #: Texts that never get into the log.
        self.masked = masked
        #: Uuids of its own.
        self.gpus = gpus
        #: Seconds between two looks at what the replica uses, its disk included; 0 = nobody looks.
        self.usage_every = usage_every
        #: Bytes of the disk that was asked for; 0 = not known.
        self.disk_limit = disk_limit
        #: Whether it is ended if its files take more.
        self.disk_enforced = disk_enforced
        #: Unix socket behind the replica's endpoint; "" = it has none.
        self.storage_socket = storage_socket
        #: The endpoint's, at `address`.
        self.storage_port = storage_port
        #: Unix socket of the service, which answers for its own APIs among Google's; "" = nobody does.
        self.rest_socket = rest_socket
        #: The same for gRPC.
        self.grpc_socket = grpc_socket
        #: Seconds without any progress after which the program is ended (`stall`); 0 = it is not watched.
        self.stall_after = stall_after
        #: Hold the memory limit by looking (`memory_limit`), as is done anyway where there is no
        #: `memory_base`.
        self.memory_polling = memory_polling
        #: Take down what the program reports (`metrics`).
        self.watch_metrics = watch_metrics
        #: How many the job has if the replica reduces or is to use them, and is watched for it
        #: (`reduction_reports`); 0 = it is not.
        self.reducers = reducers
        #: Seconds without a report after which its processes are looked at; 0 = nobody looks.
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
    """When a process started: in which boot of the machine, and at which of the kernel's ticks in it; later
    ones are more. 0 if there is none or the system does not say.

    A process id alone is no identity, the pair is. A zombie counts as gone: it runs nothing.
    """
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else _boot() << _TICKS | int(fields[19])


def is_process(pid: int, start: int) -> bool:
    """Whether the process that started at `start` (`process_start`) still runs. An earlier version noted
    ticks alone: then whichever boot it was."""
    now = process_start(pid)
    return now > 0 and start in (now, now & (1 << _TICKS) - 1)


def _boot() -> int:
    """Which boot of the machine this is: after another one ids and ticks come again. 0: the system does not
    say."""
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
