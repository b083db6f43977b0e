"""The protocol between a slot's shim, its zygote and an engine: files of a slot, documents, messages.

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

from trainshed.replica.system import lean_json as json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Sequence, TypeVar, dataclass_transform

    Message = dict[str, Any]
    _Section = TypeVar("_Section", bound="Section")
else:
    Message = dict

    def dataclass_transform(**_):
        """For type checkers alone: Python 3.6 has none."""
        return lambda marked: marked


JOURNAL = "journal"
SOCKET = "sock"
HOSTS = "hosts"
LOST_REDUCERS = "lost-reducers"
FILES = "files"
STOPPED = "stopped"

PACKED_PROGRAM = "trainshed_program"
"""The package that `trainshed run` makes of a program. Its modules put that into the working directory and
start it by another interpreter."""

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


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Section:
    """A part of a launch document. Declares its fields as `NAME: "TYPE" = DEFAULT`, or without a default."""

    FIELDS: "tuple[str, ...]" = ()

    def __init_subclass__(cls) -> None:
        cls.FIELDS = tuple(cls.__annotations__)

    def __init__(self, **values: "Any") -> None:
        for name in self.FIELDS:
            has_default = hasattr(type(self), name)
            self.__dict__[name] = (
                values.pop(name, getattr(type(self), name)) if has_default else values.pop(name)
            )
        if values:
            raise TypeError("%s has no %s" % (type(self).__name__, ", ".join(values)))


class Program(Section):
    """What is run."""

    #: The program and its arguments.
    argv: "Sequence[str]"
    #: All of its environment.
    environ: "dict[str, str]"
    #: Where it starts; "" = the slot's own working directory.
    directory: "str" = ""
    #: Copied into the slot; "" = nothing is: no Python is asked for, or it is used in place.
    python_template: "str" = ""


class Isolation(Section):
    """What the program sees of the machine. Paths are absolute."""

    #: Sandbox level (`LEVEL_*`).
    level: "str" = LEVEL_SESSION
    #: "" = the machine's.
    hostname: "str" = ""
    #: The hosts file; "" = the machine's.
    hosts: "str" = ""
    #: (first, count) of the machine's user numbers that are the program's own (`LEVEL_OWN`); () = none: it
    #: keeps the user of the shim.
    users: "Sequence[int]" = ()
    #: Directories whose content it must not see: they look empty.
    hidden: "Sequence[str]" = ()
    #: Files whose content it must not see: they look empty.
    covered: "Sequence[str]" = ()
    #: Directories that it may only read, shown at their own paths, even inside hidden ones.
    read_only: "Sequence[str]" = ()
    #: (source, target, whether it is read-only), shown besides.
    mounts: "Sequence[tuple[str, str, bool]]" = ()
    #: Device files shown in /dev besides the harmless ones.
    devices: "Sequence[str]" = ()
    #: (name, directory) of those shown as /gcs/NAME.
    buckets: "Sequence[tuple[str, str]]" = ()
    #: Directory of the root file system that it sees; "" = the machine's.
    image: "str" = ""
    #: Without an image: whether its root directory is its own, with the machine's directories in it.
    own_root: "bool" = False
    #: As whom the program of an image runs; "" = its root.
    image_user: "str" = ""
    #: File of certificate authorities that the program is to believe, shown where systems keep theirs; "" =
    #: none.
    roots: "str" = ""
    #: Bytes of /dev/shm; 0 = the kernel's choice, half of the memory.
    shm_bytes: "int" = 0


class Limits(Section):
    """What the replica may use, and where its control groups are made."""

    #: Bytes; 0 = no limit.
    memory_limit: "int" = 0
    #: Hold the memory limit by looking (`memory_limit`), as is done anyway where there is no `memory_base`.
    memory_polling: "bool" = False
    #: Its share of the processors, 100 for each; 0 = as any other process.
    cpu_weight: "int" = 0
    #: Processes and threads; 0 = no limit.
    pids_limit: "int" = 0
    #: Bytes of the disk that was asked for; 0 = not known.
    disk_limit: "int" = 0
    #: Whether it is ended if its files take more.
    disk_enforced: "bool" = False
    #: Seconds without any progress after which the program is ended (`stall`); 0 = it is not watched.
    stall_after: "float" = 0.0
    #: Control group directories under which the replica's own are made; "" = none.
    memory_base: "str" = ""
    cpu_base: "str" = ""
    pids_base: "str" = ""
    #: What its control groups are called.
    cgroup_name: "str" = ""


class Network(Section):
    """The replica's address, and what its endpoint there leads to."""

    #: The replica's own, on which its endpoint listens as well.
    address: "str" = "127.0.0.1"
    #: A bind of this port on the wildcard address becomes one of `address`; 0 = none does.
    cluster_port: "int" = 0
    #: The service's own, which the program can have on `address` alone.
    kept_ports: "Sequence[int]" = ()
    #: The endpoint's, at `address`.
    storage_port: "int" = 0
    #: Unix socket behind the endpoint; "" = there is no endpoint.
    storage_socket: "str" = ""
    #: JSON text that each connection to `storage_socket` begins with, as one line.
    identity: "str" = ""
    #: Unix socket of the service, which answers for its own APIs among Google's; "" = nobody does.
    rest_socket: "str" = ""
    #: The same for gRPC.
    grpc_socket: "str" = ""
    #: PEM file, key and chain, by which Google's hosts are served at the endpoint as well; "" = they are not.
    certificate: "str" = ""
    #: By which its program reports how far it is, over TLS (`trainer_status`); "" = it does not.
    trainer_token: "str" = ""


class Observation(Section):
    """What is taken down of the replica, and where."""

    #: Directory of the log segments, and of what is taken down beside them.
    logs: "str"
    #: What the journal says is read again after a power cut: it is synced. Not so where agents are, who find
    #: nothing of an earlier one's.
    outlasts_power: "bool" = True
    #: Texts that never get into the log.
    masked: "Sequence[str]" = ()
    #: Seconds between two looks at what the replica uses, its disk included; 0 = nobody looks.
    usage_every: "float" = 0.0
    #: Uuids of the GPUs that are its own.
    gpus: "Sequence[str]" = ()
    #: Take down what the program reports (`metrics`).
    watch_metrics: "bool" = False
    #: How many the job has if the replica reduces or is to use them, and is watched for it
    #: (`reduction_reports`); 0 = it is not.
    reducers: "int" = 0
    #: Seconds without a report after which its processes are looked at; 0 = nobody looks.
    verdict_after: "float" = 0.0


class WarmStart(Section):
    """Whether it begins in a fork of an interpreter that has come up already (docs/adr/0096, 0130)."""

    #: Unix socket of the preloader that forks it; "" = it starts by itself.
    preloader: "str" = ""
    #: Its Python environment's directory, as the program sees it.
    template: "str" = ""
    #: Only if a fork of it waits with the guardian already; else it starts by itself.
    only_waiting: "bool" = False
    #: What the preloader has imported, for people; "" = nothing, and nobody is told of it.
    preloaded: "str" = ""
    #: Why it starts by itself although its job asked for more, as a clause; "" = nobody asked, or it does
    #: not.
    cold_because: "str" = ""


class LaunchDocument(Section):
    """All that a shim needs to start one incarnation.

    As a message, and on disk, it is flat: the fields of all sections together, whose names therefore differ.
    """

    #: Its number; one that was started before is refused.
    incarnation: "int"
    program: "Program"
    isolation: "Isolation"
    limits: "Limits"
    network: "Network"
    observation: "Observation"
    warm: "WarmStart" = WarmStart()

    def to_message(self) -> "Message":
        """What `from_message` makes the same document of, also after a way through JSON."""
        message: "Message" = {"incarnation": self.incarnation}
        for section in self.FIELDS[1:]:
            message.update(getattr(self, section).__dict__)
        return message

    @classmethod
    def from_message(cls, message: "Message") -> "LaunchDocument":
        """What another version of the service wrote is read too: names that are new to either are left
        out."""

        def part(section: "type[_Section]") -> "_Section":
            return section(**{name: message[name] for name in section.FIELDS if name in message})

        return cls(
            incarnation=message["incarnation"],
            program=part(Program),
            isolation=part(Isolation),
            limits=part(Limits),
            network=part(Network),
            observation=part(Observation),
            warm=part(WarmStart),
        )


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
