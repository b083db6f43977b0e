"""A small process that has shims at hand, so that no replica pays for an interpreter's start.

The service starts it before it has threads, sockets or a database; if it dies, another is started and running
shims do not notice. It holds nothing that matters. Runs on Python 3.6.

Spoken over a stream socket pair: JSON lines with a file handle beside each.
{"slot": PATH, "preloader": PATH, "plan": LAUNCH DOCUMENT}: be a replica's shim, the handle its connection to
the service. While programs are being started, a fork of the preloader, "" = none, waits with each idle shim
that has none of another.
{"probe": PATH, "levels": LEVELS}: answer on the handle by one line {"level": the first of them that works,
"refused": {LEVEL: why not}}.
{"autopsy": true, ...}: be what `autopsy` says.
{"sweep": PATH}: delete what is in there, the handle is closed when that is done.
{"survey": PATH}: tell on the handle how all slots below it stand (`supervisor.survey`).
{"stock": NUMBER, "busy": NUMBER, "level": LEVEL}: from now on keep so many idle shims ready, forked while
nobody asks for anything; the second number for a while after each start.
{"ping": true}: close the handle, since all that was asked for before has been taken up.
A request that dies with the zygote closes its handle, which the other end sees.
"""

import gc
import os
import select
import time

from trainshed.replica import protocol
from trainshed.replica.sandbox import call_filter, levels
from trainshed.replica.supervisor import autopsy, guardian, shim, survey
from trainshed.replica.system import kernel, touched_pages, trees, unix_sockets
from trainshed.replica.system import lean_json as json
from trainshed.replica.system import lean_signal as signal
from trainshed.replica.system import lean_socket as socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_QUIET_MS = 60
_QUIET_MS_EACH = 15
"""Without a request for so long, and so much longer for each of the last burst, what was asked for has most
likely been started: until then the processors are the programs'."""
_FEW = 2
_FEW_QUIET_MS = 12
"""With fewer idle shims than that it waits only so long: where one program follows the other there is never a
longer pause, and each start would pay for a fork."""
_BURST_SECONDS = 0.1
"""What is asked for within so long is one burst: a gang, say."""
_LARGE_BURST = 16
"""Larger ones count as this."""
_SPARE = 2
"""Idle shims besides those for a burst like the largest: something smaller may have been asked for just
before it."""
_PAUSE_MS = 5
_NOTHING = 0
"""The null device here: a line always comes with a handle."""
BUSY_SECONDS = 20.0
"""After a start, more are likely to follow for so long."""


def run(handle: int) -> "NoReturn":
    """Be the zygote until the other end of `handle` closes."""
    # Away from the standard handles, which become /dev/null, and from everything else that was inherited.
    connection = socket.fromfd(handle, socket.AF_UNIX, socket.SOCK_STREAM)
    _let_go(connection.fileno())
    os.setsid()
    os.chdir("/")
    kernel.name_process("ts-zygote")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Children are nobody's business here: the kernel reaps them. So it does what a killed shim leaves; the
    # machine's first process may take its time, and until then a dying namespace waits for its dead.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    kernel.adopt_orphans()
    call_filter.prepare()
    if gc.isenabled():
        # Else whoever forked this process has looked for none while it loaded: there is nothing to speak of.
        gc.disable()
        gc.collect()
    if hasattr(gc, "freeze"):
        gc.freeze()
    Zygote(connection).serve()
    os._exit(0)


def _let_go(keep: int) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    kernel.close_all(handle for handle in kernel.open_handles() if handle > 2 and handle != keep)


class Zygote:
    """Serves one connection and keeps the stock of idle shims."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._receiver = unix_sockets.Receiver(connection)
        #: Each with the preloader of which a fork waits with it.
        self._stock: "list[tuple[socket.socket, str]]" = []
        #: That the last request named which named one.
        self._preloader = ""
        self._idle_stock = 0
        self._busy_stock = 0
        self._busy_until = 0.0
        self._level = ""
        #: Shims asked for in the last burst, and in the largest since there was none for `BUSY_SECONDS`.
        self._burst = self._largest = 0
        self._burst_until = 0.0
        self._pages = touched_pages.TouchedPages()
        #: Some of the stock may have memory of their own, which idle ones are to have only while programs are
        #: being started.
        self._has_warm = False

    def serve(self) -> None:
        """Until the other end is closed."""
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
                    pass  # That its handle is closed is the answer.
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
        """Bring the stock to what is wanted, until there is a request to be read."""
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
            without = self._without_fork() if left > 0 else -1
            if len(self._stock) >= wanted and without < 0:
                pause = left * 1000 + 1 if left > 0 else None
            if poll.poll(pause):
                return
            if without >= 0:
                self._add_fork(without)
            elif len(self._stock) < wanted:
                self._add_to_stock(warm=left > 0)

    def _wanted(self, busy_left: float) -> int:
        """How many idle shims; `busy_left`: seconds for which more starts are likely. A gang is likely to be
        followed by one like it, its own retry above all."""
        if busy_left <= 0:
            self._largest = 0
            return self._idle_stock
        return max(self._busy_stock, self._largest + _SPARE) if self._busy_stock else 0

    def _without_fork(self) -> int:
        """Which of the stock is to have a fork wait with it; -1 = none."""
        there = [preloader for _, preloader in self._stock]
        return there.index("") if self._preloader and "" in there else -1

    def _note_request(self) -> None:
        now = time.monotonic()
        if now > self._burst_until:
            self._burst, self._burst_until = 0, now + _BURST_SECONDS
        self._burst = min(_LARGE_BURST, self._burst + 1)
        self._largest = max(self._largest, self._burst)
        self._busy_until = now + BUSY_SECONDS

    def _shrink(self, size: int) -> None:
        while len(self._stock) > size:
            self._stock.pop()[0].close()
        if not self._stock:
            self._has_warm = False

    def _add_to_stock(self, *, warm: bool) -> None:
        """Fork a shim that has all it needs but a plan. `warm`: while it waits it copies the memory that a
        start writes to."""
        self._pages.look()
        self._has_warm = self._has_warm or warm
        ours, theirs = socket.socketpair()
        try:
            child = os.fork()
        except OSError:
            self._idle_stock = self._busy_stock = 0  # No room for processes that only wait.
            return
        if child == 0:
            try:
                ours.close()
                self._be_born([])
                pages = self._pages if warm else None
                child = guardian.GuardianHandle(self._level, pages)
                _await_order(theirs, child, pages)
            finally:
                os._exit(0)
        theirs.close()
        self._stock.append((ours, ""))

    def _add_fork(self, index: int) -> None:
        """Have a fork of the preloader wait with that idle shim."""
        shim_socket, _ = self._stock[index]
        self._stock[index] = shim_socket, self._preloader
        line = guardian.PRELOADER + os.fsencode(self._preloader) + b"\n"
        try:
            unix_sockets.send(shim_socket, line, _NOTHING)
        except OSError:
            return  # Somebody killed it.

    def _hand_on(self, line: bytes, handle: int) -> bool:
        """Give a request to an idle shim; false if there is none."""
        self._note_request()
        preloader = _preloader(line)
        self._preloader = preloader or self._preloader
        while self._stock:
            with self._take_from_stock(preloader) as shim_socket:
                try:
                    unix_sockets.send(shim_socket, line + b"\n", handle)
                except OSError:
                    continue  # Somebody killed it.
                return True
        return False

    def _take_from_stock(self, preloader: str) -> socket.socket:
        """The oldest with a fork of the right preloader, else with none, else of all."""
        there = [found for _, found in self._stock]
        for wanted in (preloader, ""):
            if wanted in there:
                return self._stock.pop(there.index(wanted))[0]
        return self._stock.pop(0)[0]

    def _fork(self, line: bytes, handle: int, others: "list[int]") -> None:
        if os.fork() == 0:
            try:
                self._be_born([other for other in others if other != handle])
                _become(line, handle)
            finally:
                os._exit(0)

    def _be_born(self, close: "list[int]") -> None:
        """In a child: let go of what is the zygote's. Its end of an idle shim's socket must be nobody
        else's."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setsid()
        kernel.close_all(close + self._receiver.handles())
        for shim_socket, _ in self._stock:
            shim_socket.close()
        self._connection.close()
        kernel.name_process("ts-shim")


_PLAN = b', "plan": '
"""Before a request's longest part, which the zygote does not read. No string has a quotation mark like these
in it."""


def _preloader(line: bytes) -> str:
    """What the request of a shim names as its program's preloader."""
    found: str = json.loads((line.partition(_PLAN)[0] + b"}").decode("utf-8")).get("preloader", "")
    return found


def _await_order(
    connection: socket.socket,
    child: guardian.GuardianHandle,
    pages: "touched_pages.TouchedPages | None",
) -> None:
    """Be an idle shim until there is an order, or until the zygote ends."""
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
    """Do what one request asks for. What can be done here is not done in the zygote, where others would
    wait."""
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
