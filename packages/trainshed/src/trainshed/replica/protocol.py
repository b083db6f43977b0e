"""Declares the protocol between a slot's shim, its zygote and an engine: files of a slot, documents,
messages.

It owns names and formats only, and opens nothing but the files that it is asked to read. Runs on Python 3.6.

A slot is the directory of one replica of one attempt:

    journal             what became of each incarnation (`journal` module); locked exclusively by the shim as
                        long as anything of the replica lives (the fence)
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

Service to shim: `stop` (grace, ns; notice, see `preamble`, if the platform stops the program); `ping` (n),
which the same connection hears `pong` of as long as the replica is not over; `fault` (kind, a `FAULT_*`),
which does nothing once the program is over; `write` (lines), which become the program's in its log, and of
which the same connection hears `written` (n), or `refused` (cause) while its disk is full; `shell` (tty,
rows, cols, term, command, label), after which the connection is that shell's alone (`shells` module); `port`
(port: a number, or the name of a Unix socket in the program's directory) likewise.
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
"""The package that `trainshed run` makes of a program. Its modules put that into the working directory and
start it by another interpreter."""

REFUSED_HELD = "held"
REFUSED_KNOWN = "known"
REFUSED_STOPPED = "stopped"

NEVER_STARTED = "never started"
SHIM_LOST = "the replica's shim was killed; its program died with it"

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
    """Return the name of the file in a slot that forbids an incarnation to start."""
    return "%s-%d" % (STOPPED, incarnation)


class Program(NamedTuple):
    """The program that is run."""

    #: The program and its arguments.
    argv: "Sequence[str]"
    #: All of its environment.
    environ: "dict[str, str]"
    #: Its working directory; None = the slot's own.
    directory: "str | None" = None
    #: Template of a Python environment, which is copied into the slot; in a mount namespace the program finds
    #: the copy in the template's place. None = no Python is needed.
    python_template: "str | None" = None


class Isolation(NamedTuple):
    """What the program sees of the machine. Paths are absolute."""

    #: Sandbox level (`LEVEL_*`).
    level: "str" = LEVEL_SESSION
    #: None = the machine's own.
    hostname: "str | None" = None
    #: Its hosts file; None = the machine's.
    hosts: "str | None" = None
    #: (first, count) of the machine's user ids that are the program's own (`LEVEL_OWN`); () = none, so that
    #: it keeps the shim's user.
    users: "Sequence[int]" = ()
    #: Directories whose content it must not see: they look empty.
    hidden: "Sequence[str]" = ()
    #: Files whose content it must not see: they look empty.
    covered: "Sequence[str]" = ()
    #: Directories that it may only read, shown at their own paths, even inside hidden ones.
    read_only: "Sequence[str]" = ()
    #: Further mounts: (source, target, whether it is read-only).
    mounts: "Sequence[tuple[str, str, bool]]" = ()
    #: Device files shown in /dev besides the harmless ones.
    devices: "Sequence[str]" = ()
    #: (name, directory) of the buckets shown as /gcs/NAME.
    buckets: "Sequence[tuple[str, str]]" = ()
    #: Directory of the root file system that it sees; None = the machine's.
    image: "str | None" = None
    #: User of an image's program; None = its root.
    image_user: "str | None" = None
    #: File of certificate authorities that the program is to trust, shown where systems keep theirs.
    roots: "str | None" = None
    #: Bytes of /dev/shm; None = the kernel's choice, half of the memory.
    shm_bytes: "int | None" = None


class Limits(NamedTuple):
    """What the replica may use, and where its control groups are made."""

    #: Bytes of memory; None = no limit.
    memory_limit: "int | None" = None
    #: Its share of the processors beside other programs, 100 for each; None = as any other process.
    cpu_weight: "int | None" = None
    #: Number of processes and threads; None = no limit.
    pids_limit: "int | None" = None
    #: Bytes of disk that the job asked for; None = not known.
    disk_limit: "int | None" = None
    #: Whether the replica is ended if its files take more.
    disk_enforced: "bool" = False
    #: File of the moment after which the program must not run (`deadline`); None = there is none.
    deadline: "str | None" = None
    #: Seconds without any progress after which the program is ended (`stall`); None = it is not watched.
    stall_after: "float | None" = None
    #: Control group directories under which the replica's own are made, by what these limit: memory, cpu,
    #: pids.
    bases: "Dict[str, str]" = {}  # noqa: RUF012 - nobody changes it
    #: Name of its control groups.
    cgroup_name: "str" = ""


class Network(NamedTuple):
    """The replica's address, and what its endpoint there leads to."""

    #: The replica's address, on which its endpoint listens as well.
    address: "str" = "127.0.0.1"
    #: A bind of this port on the wildcard address becomes one of `address`; None = none does.
    cluster_port: "int | None" = None
    #: The service's ports, which the program can bind on `address` alone.
    kept_ports: "Sequence[int]" = ()
    #: Port of the endpoint at `address`.
    storage_port: "int" = 0
    #: Unix socket behind the endpoint; None = there is no endpoint.
    storage_socket: "str | None" = None
    #: Whose the replica is, as JSON on one line, for `preamble`.
    identity: "str" = ""
    #: Unix socket of the service's REST APIs, which answer for Google's; None = they are not served.
    rest_socket: "str | None" = None
    #: Unix socket of the service's gRPC APIs, likewise.
    grpc_socket: "str | None" = None
    #: PEM file with the key and chain that the endpoint shows for Google's hosts; None = those are not
    #: served.
    certificate: "str | None" = None
    #: The port on which rank 0 of the job's processes listens; None = not known.
    master_port: "int | None" = None
    #: Rank 0 belongs to this replica.
    is_primary: "bool" = False


def preamble(identity: "str", is_secure: "bool", notice: "str | None" = None) -> "bytes":
    """Return the line with which a connection to `Network.storage_socket` begins. `is_secure`: its client has
    connected over TLS, and must get https:// URLs. `notice`: the connection carries no requests; as long as
    it is open, the replica's metadata report this notice ("preempted", "maintenance")."""
    more = {"scheme": "https"} if is_secure else {}
    if notice:
        more["notice"] = notice
    if more:
        identity = json.dumps({**json.loads(identity), **more})
    return identity.encode("utf-8") + b"\n"


class Observation(NamedTuple):
    """What is recorded of the replica, and where."""

    #: Directory of the log segments and of the other records.
    logs: "str"
    #: Texts that never get into the log.
    masked: "Sequence[str]" = ()
    #: Seconds between two measurements of what the replica uses, its disk included.
    usage_every: "float" = 10.0
    #: Uuids of its GPUs.
    gpus: "Sequence[str]" = ()
    #: Record the measurements that the program reports (`metrics`).
    watch_metrics: "bool" = False
    #: Number of the job's reducers if the replica is one or is to use them, and is watched for that
    #: (`reduction_reports`); None = it is not.
    reducers: "int | None" = None
    #: Whether people are told if it ends without having used them.
    reducers_expected: "bool" = False


class WarmStart(NamedTuple):
    """Whether the program begins in a fork of an interpreter that has imported its frameworks
    (docs/adr/0083)."""

    #: Unix socket of the preloader that forks it; None = it starts in its own interpreter.
    preloader: "str | None" = None
    #: Directory of its Python environment, as the program sees it.
    template: "str" = ""
    #: What the preloader has imported, as a text for people.
    preloaded: "str" = ""
    #: Why it starts in its own interpreter although its job asked for a warm start, as a clause; None = it
    #: did not ask, or gets one.
    cold_because: "str | None" = None


class LaunchDocument(NamedTuple):
    """Everything that a shim needs to start one incarnation.

    As a message, and on disk, it is flat: the fields of all sections together, whose names therefore differ.
    """

    #: Number of the incarnation; one that was started before is refused.
    incarnation: "int"
    program: "Program"
    isolation: "Isolation"
    limits: "Limits"
    network: "Network"
    observation: "Observation"
    warm: "WarmStart" = WarmStart()

    def to_message(self) -> "Message":
        """Return the message from which `from_message` makes the same document, also after a conversion to
        JSON."""
        message: "Message" = {"incarnation": self.incarnation}
        for section in self[1:]:
            message.update(section._asdict())
        return message

    @classmethod
    def from_message(cls, message: "Message") -> "LaunchDocument":
        """Make a document from a message. Messages of other versions of the service are accepted: unknown
        fields are ignored, and missing ones get their defaults."""
        sections: "list[Any]" = [
            section(**{name: message[name] for name in section._fields if name in message})
            for section in (Program, Isolation, Limits, Network, Observation, WarmStart)
        ]
        return cls(message["incarnation"], *sections)


def ordered(line: bytes) -> "tuple[str, LaunchDocument]":
    """Return the slot and the launch document of the order for a replica."""
    message = json.loads(line.decode("utf-8"))
    return message["slot"], LaunchDocument.from_message(message["plan"])


def encode(message: "Message") -> bytes:
    return json.dumps(message).encode("utf-8") + b"\n"


class Lines:
    """Splits a byte stream into messages; keeps the incomplete rest."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> "list[Message]":
        parts = (self._rest + data).split(b"\n")
        self._rest = parts.pop()
        return [json.loads(part.decode("utf-8")) for part in parts if part]


def process_start(pid: int, proc: str = "/proc") -> int:
    """Return when a process started, as one number made of the machine's boot and the kernel's ticks since
    then; later starts are larger. 0 if there is no such process or the system does not tell. `proc`: where
    processes have this number.

    A process id alone is no identity, but with this number it is. A zombie counts as gone, because it runs
    nothing.
    """
    fields = processes.read("%s/%d/stat" % (proc, pid)).rpartition(b")")[2].split()
    return 0 if not fields or fields[0] in (b"Z", b"X") else _boot() << _TICKS | int(fields[19])


def is_process(pid: int, start: int, proc: str = "/proc") -> bool:
    """Whether the process that started at `start` (`process_start`) still runs."""
    return process_start(pid, proc) == start > 0


@lru_cache(maxsize=None)
def _boot() -> int:
    """Return a number of the machine's boot, since process ids and ticks recur after another one; 0 = the
    system does not tell."""
    boot = processes.read("/proc/sys/kernel/random/boot_id").replace(b"-", b"")
    return int(boot[:12] or b"0", 16)


_TICKS = 64
"""Bits that the ticks have room in."""
