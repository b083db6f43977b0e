"""The engine's view of one slot, which is a replica's directory, address and devices: the replica's current
run (incarnation), the state of that run, and the last report about it.

A slot is in one of three states: its end is known, its shim is connected, or its state must be determined
(`engine.Reconciler`). After a lost connection, the state must be determined. An end is final until the
replica's next run.

A slot may have been copied together with its data directory. Its files then describe processes of the
original slot, which may be alive. So the run in the copy counts as lost (`journal`).
"""

import asyncio
import contextlib
import enum
import errno
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from trainshed.core.job import ExitRecord
from trainshed.core.lifecycle.records import StopNotice
from trainshed.core.lifecycle.replica_events import (
    ReplicaEvent,
    ReplicaExited,
    ReplicaLost,
    ReplicaNoted,
    ReplicaStarted,
)
from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.units import Nanos
from trainshed.engines.port import (
    EngineEvent,
    EngineUnavailable,
    Fault,
    LinesWritten,
    MetricsWritten,
    ReplicaReport,
    Slot,
)
from trainshed.replica import protocol
from trainshed.replica.supervisor import clients, journal

_RETRIES = 3
_ENDED = protocol.encode({"e": "refused", "cause": "the replica has just ended"})
_WRITE_TIMEOUT = 10.0
"""Seconds that a shim may take to write the lines of an order into its log."""
_MAX_ORDER = 32 << 10
"""Maximum number of characters of one order, unless a single line is longer. The shim does nothing else while
it handles the order."""
_LOCAL_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""Errors of a connection to a shim that the shim did not cause."""

_COPIED = (
    "the data directory was copied, or restored from a backup: if the replica's processes still run, "
    "another service owns them"
)


class Over(Struct, frozen=True):
    """The run (incarnation) of the replica has ended. `record`: its attempt record (exited or lost). `notes`:
    all notes (messages to users) of its shim."""

    record: protocol.Message
    notes: tuple[protocol.Message, ...] = ()


class Unclear(enum.Enum):
    """The run (incarnation) of the replica has not ended, and no shim accepts connections."""

    #: A shim is starting or ending, or processes of a killed shim still exist. Probe again soon.
    CHANGING = enum.auto()
    #: No process of the replica's run (incarnation) ever existed, and no shim is about to start one.
    NEVER_STARTED = enum.auto()


Finding = Over | socket.socket | Unclear
"""The state of one run (incarnation) of a replica. A socket is the connection to the shim that supervises the
run."""


def probe_latest(slot_handle: "SlotHandle") -> tuple[int, Finding] | None:
    """Determine the state of the latest run (incarnation) of a replica, from the files of its slot. Returns
    None if none was started."""
    entries = journal.Entries(str(slot_handle.directory))
    if not entries.latest:
        return None
    try:
        return entries.latest, probe_slot(slot_handle.directory, entries.latest, entries)
    except OSError:
        return entries.latest, Unclear.CHANGING  # Unknown now: the caller will probe again.


def probe_slot(slot: Path, incarnation: int, entries: journal.Entries | None = None) -> Finding:
    """Determine the state of one run (incarnation) of a replica, and connect to its shim if it has one. If
    the shim was killed, kill the remaining processes and record the loss, so that the state is final.
    `entries`: entries of the journal in `slot`, if they were just read. Raises OSError if the state cannot be
    determined now."""
    place = str(slot)
    entries = entries or journal.Entries(place)
    if (record := entries.record(incarnation)) is not None:
        return Over(record, tuple(entries.notes(incarnation)))
    lock = journal.try_lock(place)
    if lock < 0:
        try:
            return clients.connect(place)
        except OSError as error:
            if error.errno in _LOCAL_ERRORS:
                raise
            return Unclear.CHANGING
    try:
        # The process that had the lock may have written the record after the first read.
        entries = journal.Entries(place)
        if (record := entries.record(incarnation)) is None:
            if entries.latest < incarnation:
                return Unclear.NEVER_STARTED
            if not journal.clear(entries):
                return Unclear.CHANGING
            record = journal.lost_record(_COPIED if entries.is_copied else protocol.SHIM_LOST)
            journal.Claim(incarnation, lock).finish(record)
        return Over(record, tuple(entries.notes(incarnation)))
    finally:
        journal.release(lock)


class SlotHandle:
    """Turns a shim's messages and the files of its replica into the port's events. Events are emitted in
    order, and each end only once."""

    def __init__(
        self,
        *,
        job_uid: JobUid,
        attempt: int,
        slot: Slot,
        directory: Path,
        emit: Callable[[EngineEvent], None],
        unclear: Callable[["SlotHandle"], None],
    ) -> None:
        self.job_uid = job_uid
        self.attempt = attempt
        self.slot = slot
        self.directory = directory
        #: The number of the replica's latest run (incarnation); 0 = none was launched yet.
        self.incarnation = 0
        #: Launch document (the shim's input) of the latest run (incarnation); None = this service has not
        #: started it.
        self.plan: protocol.Message | None = None
        self.retries_left = _RETRIES
        #: Whether the shim did not respond and is being killed.
        self.is_evicted = False
        self._emit = emit
        #: Called when the state must be determined.
        self._unclear = unclear
        #: The connection to the shim, read on the event loop; None = not connected.
        self._connection: socket.socket | None = None
        self._lines = protocol.Lines()
        self._started = 0
        #: The record of the end of the latest run; None = it is unknown, or nothing was launched yet.
        self._record: protocol.Message | None = None
        self._grace: int | None = None
        self._notice: StopNotice | None = None
        self._heard_of = False
        self._silent = 0

    @property
    def key(self) -> tuple[JobUid, int, ReplicaId]:
        """The slot's replica, as (job, attempt, replica)."""
        return self.job_uid, self.attempt, self.slot.replica

    @property
    def is_live(self) -> bool:
        """Whether the program is running, or may be running."""
        return self.incarnation > 0 and self._record is None

    @property
    def has_failed(self) -> bool:
        """Whether the replica's latest run (incarnation) failed and was not stopped."""
        match self._record:
            case None:
                return False
            case {"lost": cause}:
                return cause != protocol.NEVER_STARTED
            case record:
                return record["exit_code"] != 0 and not record["stopped"]

    def expects(self, incarnation: int) -> bool:
        """Whether that run of the replica (`incarnation`) is the latest one and has not ended yet."""
        return self.is_live and self.incarnation == incarnation

    @property
    def is_awaiting_start(self) -> bool:
        """Whether the replica is live, and this service has no report that the program has started."""
        return self.is_live and not self._started

    def start_incarnation(self, incarnation: int, plan: protocol.Message | None = None) -> None:
        """Prepare the handle for another run (incarnation) of the replica. `plan`: its `LaunchDocument`; None
        = this service does not start it."""
        self.close()
        self.incarnation = incarnation
        self.plan = plan
        self.retries_left = _RETRIES
        self.is_evicted = False
        self._started = 0
        self._record = None
        self._grace = None
        self._notice = None
        self._heard_of = True  # Count the shim as alive now: its silence is measured from now on.
        self._silent = 0

    def attach(self, connection: socket.socket) -> None:
        """Receive the shim's messages on this connection, and send the pending orders."""
        self.close()
        self._connection, self._lines = connection, protocol.Lines()
        connection.setblocking(False)
        asyncio.get_running_loop().add_reader(connection.fileno(), self._read, connection)
        if self._grace is not None:
            self._order_stop()

    def ping(self) -> int:
        """Ping the shim; return the number of pings since its last message."""
        self._silent = 0 if self._heard_of else self._silent + 1
        self._heard_of = False
        # The shim's event loop responds with `pong` immediately.
        self._order({"o": "ping", "n": self._silent})
        return self._silent

    def count_as_alive(self) -> None:
        """Treat the shim as if it had responded, because it did not cause the missing response."""
        self._heard_of = True

    def close(self) -> None:
        """Close the connection; the shim continues."""
        if self._connection is not None:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._connection.close()
            self._connection = None

    def stop(self, grace: int, notice: StopNotice | None = None) -> None:
        """Have the shim send SIGTERM to the program, and SIGKILL after `grace` ns. If the run has already
        ended, report the end again. `notice`: the notice that the program's metadata server reports from now
        on."""
        self._grace = grace
        self._notice = notice or self._notice
        if self._record is not None:
            self.report(self.incarnation, self._record)
        else:
            self._order_stop()

    def _order_stop(self) -> None:
        notice = {"notice": self._notice.value} if self._notice else {}
        self._order({"o": "stop", "grace": self._grace, **notice})

    def inject(self, fault: Fault) -> bool:
        """Have the shim inject a fault. Does nothing if the replica's run has ended. Returns False if it is
        live but its shim cannot be reached."""
        self._order({"o": "fault", "kind": fault.value})
        return self._connection is not None or not self.is_live

    async def write_log(self, lines: Sequence[str]) -> None:
        """Have the shim write lines into its log as if its program had printed them, and wait for the write.
        Raises EngineUnavailable if the replica has ended, or if its shim does not respond."""
        if not self.is_live:
            raise EngineUnavailable("the replica has ended")
        try:
            connection = clients.connect(str(self.directory))
            reader, writer = await asyncio.open_connection(sock=connection)
            with contextlib.closing(writer):
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    writer.writelines(map(protocol.encode, _orders(lines)))
                    written = 0
                    while written < len(lines):
                        message = json.loads(await reader.readline() or _ENDED)
                        if message["e"] == "refused":
                            raise EngineUnavailable(message["cause"])
                        written += message["n"] if message["e"] == "written" else 0
        except OSError as failure:  # TimeoutError is an OSError as well.
            raise EngineUnavailable(
                f"the replica's supervisor (shim) does not respond: {failure!r}"
            ) from failure

    def lose(self, cause: str, *, by_service: bool = False) -> None:
        self._end(journal.lost_record(cause, by_service=by_service))

    def apply(self, incarnation: int, finding: Finding) -> None:
        """Apply the state of a run (incarnation) that was determined from the replica's files. Does nothing
        if another run is the current one, or if this one has ended."""
        if not self.expects(incarnation):
            if isinstance(finding, socket.socket):
                finding.close()
            return
        match finding:
            case Over(record, notes):
                self._end(record, notes)
            case socket.socket():
                self.attach(finding)
            case Unclear.NEVER_STARTED:
                self.lose(protocol.NEVER_STARTED)
            case Unclear.CHANGING:
                self._unclear(self)

    def report_again(self) -> None:
        if self._record is not None:
            self.report(self.incarnation, self._record)
        elif self._started:
            self._emit_started(self.incarnation, self._started)

    def report(
        self, incarnation: int, record: protocol.Message, notes: Sequence[protocol.Message] = ()
    ) -> None:
        """Emit events for the notes (messages to users), and then for the end in the attempt record."""
        replica = self.slot.replica
        if "lost" in record:
            self._emit_notes(incarnation, notes)
            lost, by_service = record["lost"], record["by_service"]
            self._report_event(
                ReplicaLost(
                    attempt=self.attempt,
                    replica=replica,
                    incarnation=incarnation,
                    cause=lost,
                    by_service=by_service,
                )
            )
            return
        exit_record = ExitRecord(**record)
        if incarnation != self.incarnation or not self._started:
            self._emit_started(incarnation, exit_record.started)
        self._emit_notes(incarnation, notes)
        self._report_event(
            ReplicaExited(attempt=self.attempt, replica=replica, incarnation=incarnation, exit=exit_record)
        )

    def _report_event(self, event: ReplicaEvent) -> None:
        self._emit(ReplicaReport(self.job_uid, event))

    def _emit_started(self, incarnation: int, at: Nanos) -> None:
        self._report_event(
            ReplicaStarted(attempt=self.attempt, replica=self.slot.replica, incarnation=incarnation, at=at)
        )

    def _emit_notes(self, incarnation: int, notes: Sequence[protocol.Message]) -> None:
        for note in notes:
            self._report_event(
                ReplicaNoted(
                    attempt=self.attempt,
                    replica=self.slot.replica,
                    incarnation=incarnation,
                    number=note["n"],
                    at=note["at"],
                    name=note["name"],
                    severity=note["severity"],
                    text=note["text"],
                )
            )

    def _order(self, message: protocol.Message) -> None:
        if self._connection is not None:
            # Ignore errors. If no process listens, the connection ends, which `_read` detects. If the
            # socket's buffer is full, the shim has not read for a long time and soon counts as lost.
            with contextlib.suppress(OSError):
                self._connection.send(protocol.encode(message))

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for message in self._lines.feed(data):
            if connection is self._connection:
                self._handle_message(message)
        if not data and connection is self._connection:
            self._handle_disconnection()

    def _handle_message(self, message: protocol.Message) -> None:
        self._heard_of = True
        match message["e"]:
            case "pong":
                pass  # The message only shows that the shim is alive.
            case "started":
                self._started = message["at"]
                self._emit_started(self.incarnation, self._started)
            case "lines":
                self._emit(LinesWritten(self.job_uid, self.attempt, self.slot.replica, message["n"]))
            case "metrics":
                self._emit(MetricsWritten(self.job_uid, self.attempt, self.slot.replica))
            case "note":
                self._emit_notes(self.incarnation, [message])
            case "exited":
                self._end(message["record"])
            case "lost":
                self.lose(message["cause"], by_service=message["by_service"])
            case "refused":
                if message["cause"] == protocol.REFUSED_STOPPED:
                    self.lose(protocol.NEVER_STARTED)
                else:  # The replica's files are newer than this service's information: read them.
                    self.retries_left = 0
                    self._handle_disconnection()
            case other:
                raise ValueError(f"unknown message {other!r} from a shim")

    def _handle_disconnection(self) -> None:
        self.close()
        if self.is_live:
            self._unclear(self)

    def _end(self, record: protocol.Message, notes: Sequence[protocol.Message] = ()) -> None:
        if not self.is_live:
            return  # Both the shim and the files may report the end. The first report counts.
        self._record = record
        self.close()
        self.report(self.incarnation, record, notes)


def _orders(lines: Sequence[str]) -> Iterator[protocol.Message]:
    batch: list[str] = []
    size = 0
    for line in lines:
        if batch and size + len(line) > _MAX_ORDER:
            yield {"o": "write", "lines": batch}
            batch, size = [], 0
        batch.append(line)
        size += len(line)
    if batch:
        yield {"o": "write", "lines": batch}
