"""Runs a small process that keeps forked shims ready, so that no replica waits for an interpreter's start.

The service starts it before it has threads, sockets or a database. If it dies, another is started, and
running shims do not notice. It holds no state that matters. Runs on Python 3.6.

Requests come over a stream socket pair: JSON lines, each with a file handle.
- {"slot": PATH, "preloader": PATH, "plan": LAUNCH DOCUMENT}: become a replica's shim; the handle is its
  connection to the service. For a while afterwards a fork of that preloader ("" = none) waits with each idle
  shim that has no fork yet.
- {"probe": PATH, "levels": LEVELS}: answer on the handle with one line {"level": the first one that works,
  "refused": {LEVEL: why not}}, or {"failed": why it is not known}.
- {"autopsy": true, ...}: do what `autopsy` describes.
- {"sweep": PATH}: delete what is in that directory, and close the handle when that is done.
- {"survey": PATH}: send the state of all slots below it over the handle (`supervisor.survey`).
- {"stock": NUMBER, "busy": NUMBER, "level": LEVEL}: from now on keep so many idle shims ready, forked while
  no request comes; the second number applies for a while after each start, or more after a larger gang.
- {"ping": true}: close the handle, because all earlier requests have been taken up.
If the zygote dies, the handles of its requests are closed, which the other end sees.
"""

import gc
import json
import os
import select
import signal
import socket
import time

from trainshed.replica import protocol
from trainshed.replica.sandbox import call_filter, levels
from trainshed.replica.supervisor import autopsy, guardian, shim, survey
from trainshed.replica.system import immortal, kernel, reaper, touched_pages, trees, unix_sockets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_QUIET_MS = 60
_QUIET_MS_EACH = 15
"""Milliseconds without a request before anything is forked ahead, and more for each request of the last
burst. By then the requested programs have most likely been started; until then they are to have the
processors."""
_FEW = 2
_FEW_QUIET_MS = 12
"""With fewer than `_FEW` idle shims it waits only this long: where one program follows another there is never
a longer pause, and each start would have to wait for a fork."""
_PAUSE_MS = 5
"""Milliseconds between two forks, in which a request goes first."""
_BURST_SECONDS = 0.1
"""Shims requested within this time are one burst, such as a gang."""
_LARGE_BURST = 16
"""Larger bursts count as this."""
_SPARE = 2
"""Idle shims beyond those for a burst like the largest, because a smaller request may come just before it."""
BUSY_SECONDS = 20.0
"""Seconds after a start in which further ones are likely."""
_NULL = 0
"""Handle of the null device, sent with lines that need no handle of their own."""


def run(handle: int) -> "NoReturn":
    """Be the zygote until the other end of `handle` closes. Does not return."""
    # Away from the standard handles, which become /dev/null.
    connection = socket.fromfd(handle, socket.AF_UNIX, socket.SOCK_STREAM)
    kernel.close_inherited(connection.fileno())
    os.setsid()
    os.chdir("/")
    kernel.name_process("ts-zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The kernel reaps our children, since nobody here waits for them. It does so for what a killed shim
    # leaves, too: the machine's first process may take its time, and until then a dying namespace waits for
    # its dead.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel.adopt_orphans()
    call_filter.prepare()
    reaper.prepare()
    if gc.isenabled():
        # Otherwise the process that forked this one loaded without collecting, and there is little to
        # collect.
        gc.disable()
        gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()
    Zygote(connection).serve()
    os._exit(0)


class _IdleShim:
    """The zygote's side of a shim that waits for a request."""

    __slots__ = ("connection", "preloader")

    def __init__(self, connection: socket.socket) -> None:
        #: The shim ends when this is closed.
        self.connection = connection
        #: The preloader of which a fork waits with it; "" = none.
        self.preloader = ""


class Zygote:
    """Serves one connection and keeps the stock of idle shims."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._receiver = unix_sockets.Receiver(connection)
        #: The idle shims, oldest first.
        self._stock: "list[_IdleShim]" = []
        #: The preloader of the last request that named one.
        self._preloader = ""
        #: How many idle shims are wanted at rest, and while programs are being started.
        self._idle_stock = 0
        self._busy_stock = 0
        self._busy_until = 0.0
        self._level = ""
        #: Shims requested in the last burst, and in the largest since `BUSY_SECONDS` passed without one.
        self._burst = self._largest = 0
        self._burst_until = 0.0
        self._pages = touched_pages.TouchedPages()
        self._is_immortal = False
        #: Whether some idle shims may have copied memory ahead, which they are to hold only while programs
        #: are being started.
        self._has_warm = False

    def serve(self) -> None:
        """Serve requests until the other end is closed."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        while True:
            self._keep_stock(poll)
            requests = self._receiver.receive()
            if not requests:
                return
            handles = [handle for _, handle in requests]
            for line, handle in requests:
                if line.startswith(b'{"stock"'):
                    self._restock(line)
                elif line.startswith(b'{"ping"'):
                    pass  # Closing its handle is the answer.
                elif not (line.startswith(b'{"slot"') and self._hand_on(line, handle)):
                    self._fork(line, handle, handles)
                os.close(handle)
                handles.remove(handle)

    def _restock(self, line: bytes) -> None:
        message = json.loads(line.decode("utf-8"))
        self._idle_stock, self._busy_stock = message["stock"], message["busy"]
        self._level = message["level"]
        self._shrink(0)

    def _keep_stock(self, poll: "select.poll") -> None:
        """Bring the stock to the wanted size, until a request can be read."""
        began = time.monotonic()
        while True:
            patience = _QUIET_MS + _QUIET_MS_EACH * self._burst
            if len(self._stock) < _FEW:
                patience = _FEW_QUIET_MS
            passed = (time.monotonic() - began) * 1000
            pause: "float | None" = max(_PAUSE_MS, patience - passed)
            left = self._busy_until - time.monotonic()
            wanted = self._wanted(left)
            self._shrink(wanted if left > 0 or not self._has_warm else 0)
            without = self._without_fork() if left > 0 else None
            if len(self._stock) >= wanted and without is None:
                pause = left * 1000 + 1 if left > 0 else None
            if poll.poll(pause):
                return
            if without is not None:
                self._add_fork(without)
            elif len(self._stock) < wanted:
                self._add_to_stock(warm=left > 0)

    def _wanted(self, busy_left: float) -> int:
        """Return how many idle shims are wanted. `busy_left`: seconds for which more starts are likely. A
        gang is likely to be followed by one of the same size, above all by its own retry."""
        if busy_left <= 0:
            self._largest = 0
            return self._idle_stock
        return max(self._busy_stock, self._largest + _SPARE) if self._busy_stock else 0

    def _without_fork(self) -> "_IdleShim | None":
        """Return the next idle shim that is to have a fork wait with it; None = there is none."""
        return self._oldest_with("") if self._preloader else None

    def _oldest_with(self, preloader: str) -> "_IdleShim | None":
        return next((idle for idle in self._stock if idle.preloader == preloader), None)

    def _note_request(self) -> None:
        now = time.monotonic()
        if now > self._burst_until:
            self._burst, self._burst_until = 0, now + _BURST_SECONDS
        self._burst = min(_LARGE_BURST, self._burst + 1)
        self._largest = max(self._largest, self._burst)
        self._busy_until = now + BUSY_SECONDS

    def _shrink(self, size: int) -> None:
        while len(self._stock) > size:
            self._stock.pop().connection.close()
        if not self._stock:
            self._has_warm = False

    def _add_to_stock(self, *, warm: bool) -> None:
        """Fork an idle shim that needs only a plan. `warm`: while it waits, it copies the memory that a start
        writes to."""
        if not self._is_immortal:
            # It takes tens of milliseconds, for which no start is to wait; shims forked on demand before that
            # copy more.
            self._is_immortal = True
            immortal.make_immortal()
        self._pages.look()
        self._has_warm = self._has_warm or warm
        ours, theirs = socket.socketpair()
        try:
            child = os.fork()
        except OSError:
            self._idle_stock = self._busy_stock = 0  # No memory for processes that only wait.
            return
        if child == 0:
            try:
                ours.close()
                self._leave_zygote([])
                pages = self._pages if warm else None
                child = guardian.GuardianHandle(self._level, pages)
                _await_order(theirs, child, pages)
            finally:
                os._exit(0)
        theirs.close()
        self._stock.append(_IdleShim(ours))

    def _add_fork(self, idle: _IdleShim) -> None:
        """Have a fork of the preloader wait with an idle shim."""
        idle.preloader = self._preloader
        line = guardian.PRELOADER + os.fsencode(self._preloader) + b"\n"
        try:
            unix_sockets.send(idle.connection, line, _NULL)
        except OSError:
            return  # The idle shim was killed.

    def _hand_on(self, line: bytes, handle: int) -> bool:
        """Pass a request on to an idle shim; return false if there is none."""
        self._note_request()
        preloader = _preloader(line)
        self._preloader = preloader or self._preloader
        while self._stock:
            with self._take_from_stock(preloader).connection as connection:
                try:
                    unix_sockets.send(connection, line + b"\n", handle)
                except OSError:
                    continue  # The idle shim was killed.
                return True
        return False

    def _take_from_stock(self, preloader: str) -> _IdleShim:
        """Take the oldest idle shim with a fork of the right preloader, else the oldest without a fork, else
        the oldest."""
        idle = self._oldest_with(preloader) or self._oldest_with("") or self._stock[0]
        self._stock.remove(idle)
        return idle

    def _fork(self, line: bytes, handle: int, handles: "list[int]") -> None:
        """Fork a process that carries out one request. `handles`: those of all requests just received."""
        if os.fork() == 0:
            try:
                self._leave_zygote([other for other in handles if other != handle])
                _become(line, handle)
            finally:
                os._exit(0)

    def _leave_zygote(self, close: "list[int]") -> None:
        """In a child: close the zygote's own handles, and those in `close`. An idle shim would not end with
        the zygote if another process had the zygote's end of its socket."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        kernel.close_all(close + self._receiver.handles())
        for idle in self._stock:
            idle.connection.close()
        self._connection.close()
        kernel.name_process("ts-shim")


_PLAN = b', "plan": '
"""Start of a request's longest part, which the zygote does not parse. Inside a JSON string the quotation
marks would be escaped."""


def _preloader(line: bytes) -> str:
    """Return the preloader that a shim's request names; "" = none."""
    found: str = json.loads((line.partition(_PLAN)[0] + b"}").decode("utf-8")).get("preloader", "")
    return found


def _await_order(
    connection: socket.socket,
    child: guardian.GuardianHandle,
    pages: "touched_pages.TouchedPages | None",
) -> None:
    """Be an idle shim until an order comes or the zygote ends."""
    note = pages.ready(touched_pages.SHIM) if pages is not None else None
    receiver = unix_sockets.Receiver(connection)
    received = receiver.receive_one()
    if received is not None and received[0].startswith(guardian.PRELOADER):
        child.announce(received[0])
        os.close(received[1])
        received = receiver.receive_one()
    connection.close()
    if received is not None:
        line, handle = received
        shim.main(line, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, handle), child, note)


def _become(line: bytes, handle: int) -> None:
    """Carry out one request, in a process of its own, so that other requests do not wait for it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, handle)
    if line.startswith(b'{"slot"'):
        shim.main(line, connection, None)
        return
    if line.startswith(b'{"autopsy"'):
        autopsy.main(line, connection)
        return
    message = json.loads(line.decode("utf-8"))
    if "probe" in message:
        try:
            level, refused = levels.probe(message["probe"], message["levels"])
        except levels.ProbeFailed as failure:
            connection.sendall(protocol.encode({"failed": str(failure)}))
        else:
            connection.sendall(protocol.encode({"level": level, "refused": refused}))
    elif "survey" in message:
        survey.main(message["survey"], connection)
    else:
        trees.sweep(message["sweep"])
