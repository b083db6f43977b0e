"""The ledger of a group's operations. It records the destinations of chunks, the received results, and the
chunks that other ranks may still need. It uses no sockets, threads or clocks.

An operation (all-reduce) consists of chunks. Each chunk is sent to the next position of a lane (a connection
to one thread of a reducer). All ranks compute the same positions.

The ledger keeps a chunk until all ranks have its result, because the chunk's reducer may be lost. After such
a loss, the rank sends the chunk again: its result if it has arrived, or otherwise its input. Until the
operation is done, the result is in the user's memory. Afterwards, the ledger keeps a copy.
"""

from __future__ import annotations

from collections import deque
from typing import Deque, List, NamedTuple, Optional, Tuple

from trainshed_reduction import layout
from trainshed_reduction.client.operations import Operation
from trainshed_reduction.native.transfer import Frame
from trainshed_reduction.wire import DType, Header, Kind, Reduction


class Place(NamedTuple):
    """The destination of a chunk."""

    lane: int
    #: Number that orders the frames of a rank (`Frame.row`). Its integer part is the same on all ranks.
    row: float


def place_of(number: int, lanes: int, rank: int, world: int) -> Place:
    """Return the destination of a chunk. `number`: index of the chunk, from 0, over all operations.

    Chunks are assigned in turn to lanes (connections to threads of reducers), and a row consists of one chunk
    per lane. All ranks assign a chunk to the same lane, but each rank sends the chunks of a row in an order
    that starts at a different lane. Therefore not all ranks send to the same reducer at once.
    """
    row, lane = divmod(number, lanes)
    return Place(lane, row + (lane - rank * lanes // world) % lanes / lanes)


class Work:
    """An operation: the header fields that all of its chunks share, and the user's memory until the operation
    is done."""

    __slots__ = ("dtype", "entries", "header", "left", "operation", "view")

    def __init__(self, header: Header, view: memoryview, operation: Operation) -> None:
        self.header = header
        self.dtype = DType(header.dtype)
        self.view: Optional[memoryview] = view
        self.operation = operation
        self.entries: List[Entry] = [Entry(self, chunk) for chunk in range(-(-header.total // header.step))]
        self.left = len(self.entries)


class Entry:
    """A chunk of an operation. `here`: whether this rank has the chunk's result. `everywhere`: whether all
    ranks have it."""

    __slots__ = ("chunk", "everywhere", "here", "kept", "row", "work")

    def __init__(self, work: Work, chunk: int) -> None:
        self.work = work
        self.chunk = chunk
        self.here = False
        self.everywhere = False
        self.kept: Optional[memoryview] = None
        self.row = 0.0

    def data(self) -> memoryview:
        if self.kept is not None:
            return self.kept
        work = self.work
        assert work.view is not None
        size = work.header.step * work.dtype.itemsize
        return work.view[self.chunk * size : (self.chunk + 1) * size]

    def keep(self) -> None:
        if self.kept is None:
            self.kept = memoryview(bytearray(self.data()))

    def frame(self) -> Frame:
        """Return the frame of the chunk to send. It contains the chunk's input, or a copy of its result if
        the result has arrived. A copy is needed because the operation may be done, and the user's memory may
        change, before the frame is sent."""
        if self.here:
            self.keep()
        data = self.data()
        kind = Kind.FINAL if self.here else Kind.DATA
        header = self.work.header._replace(kind=kind, chunk=self.chunk, nbytes=len(data))
        return Frame(header, data, None if self.here else data, self.row)


class _Lane:
    __slots__ = ("base", "entries", "received")

    def __init__(self) -> None:
        self.base = 0
        self.entries: Deque[Entry] = deque()  # from position `base` on
        self.received = 0  # all results below this position have arrived


class Ledger:
    """The operations of a group on one rank, with their chunks and results."""

    def __init__(self, lanes: int, rank: int, world: int, largest: int) -> None:
        """`lanes`: number of connections to threads of reducers. `largest`: maximum bytes of a chunk, the
        same on all ranks."""
        self._rank = rank
        self._largest = largest
        self._world = world
        self._lanes = [_Lane() for _ in range(lanes)]
        #: Number of chunks that were assigned to lanes (connections to reducers) so far.
        self._dealt = 0
        self._issued = 0
        #: Unfinished operations, in order.
        self.open: List[Work] = []

    def keeps(self, lane: int) -> bool:
        """Return whether other ranks may lack a result of this lane (a connection to one thread of a
        reducer). The ledger must then keep the lane's chunks."""
        return bool(self._lanes[lane].entries)

    def issue(
        self, view: memoryview, dtype: DType, reduction: Reduction, operation: Operation
    ) -> List[Tuple[int, Frame]]:
        """Start an operation on `view`, a memoryview of bytes. Return (lane, frame) pairs: the frames to
        send, each with its connection to a reducer."""
        total = len(view) // dtype.itemsize
        step = layout.chunk_elements(total, dtype.itemsize, len(self._lanes), self._largest)
        header = Header(
            Kind.DATA,
            dtype,
            reduction,
            self._rank,
            operation=self._issued,
            total=total,
            step=step,
            ordinal=operation.number,
        )
        work = Work(header, view, operation)
        self._issued += 1
        self.open.append(work)
        return [self._deal(entry) for entry in work.entries]

    def result_count(self, lane: int) -> int:
        return self._lanes[lane].received

    def oldest_pending(self, lane: int) -> Optional[Entry]:
        """Return the first chunk without a result on a lane (a connection to one thread of a reducer); None =
        all results have arrived."""
        state = self._lanes[lane]
        at = state.received - state.base
        return state.entries[at] if at < len(state.entries) else None

    def record_result(self, lane: int, position: int) -> Optional[Work]:
        """Record that the result of a chunk has arrived. Return the chunk's operation if all of its results
        have arrived, otherwise None."""
        state = self._lanes[lane]
        entry = state.entries[position - state.base]
        entry.here = True
        while (
            state.received < state.base + len(state.entries)
            and state.entries[state.received - state.base].here
        ):
            state.received += 1
        entry.work.left -= 1
        return entry.work if not entry.work.left else None

    def release(self, work: Work) -> None:
        """Stop using the user's memory of a finished operation. Copies the results that other ranks may still
        need."""
        for entry in work.entries:
            if not entry.everywhere:
                entry.keep()
        work.entries = []
        work.view = None
        self.open.remove(work)

    def acknowledge(self, lane: int, position: int) -> None:
        """Delete the chunks of a lane (a connection to one thread of a reducer) below a position, because all
        ranks have their results."""
        state = self._lanes[lane]
        while state.base < min(position, state.received):
            entry = state.entries.popleft()
            entry.everywhere = True
            entry.kept = None
            state.base += 1

    def replay(self, lane: int, position: int) -> Optional[List[Frame]]:
        """Return the frames of a lane (a connection to one thread of a reducer) from `position` on. A reducer
        requests these frames after a new connection. None = the position is invalid."""
        state = self._lanes[lane]
        if not state.base <= position <= state.received:
            return None
        return [entry.frame() for at, entry in enumerate(state.entries, state.base) if at >= position]

    def _deal(self, entry: Entry) -> Tuple[int, Frame]:
        lane, entry.row = place_of(self._dealt, len(self._lanes), self._rank, self._world)
        self._dealt += 1
        self._lanes[lane].entries.append(entry)
        return lane, entry.frame()
