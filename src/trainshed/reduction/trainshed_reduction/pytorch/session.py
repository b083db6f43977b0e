"""One group's way to the reducers for tensors of one kind of device: begun by all of its ranks together, or
by none.

Three steps that every rank goes, each with a limit: agree on the settings and the layout of nodes; connect
and add a few numbers; agree that all could. Whoever cannot says why, and the group is native on all ranks.
"""

from __future__ import annotations

import array
import json
import os
import socket
import time
from typing import Dict, List, NamedTuple, Optional, Sequence

import torch
import torch.distributed as dist

from trainshed_reduction import process, wire
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.port import NativeOperations, ReductionFailed
from trainshed_reduction.pytorch.choosing import Chooser, Natively, may_choose
from trainshed_reduction.pytorch.fallback import Fallback
from trainshed_reduction.pytorch.hierarchy import Node, UnevenNodes, nodes_of
from trainshed_reduction.pytorch.pipeline import Pipeline
from trainshed_reduction.pytorch.tensors import DTYPES, bytes_of
from trainshed_reduction.pytorch.work import ReductionWork
from trainshed_reduction.settings import Settings
from trainshed_reduction.variables import NODE_FIRST, REPLICA
from trainshed_reduction.wire import DType, Reduction


class Group(NamedTuple):
    """A process group of PyTorch's: its name, alike on all ranks; this rank; the store behind it, and what
    tells the group from others of that name in it."""

    name: str
    rank: int
    world: int
    store: dist.Store
    instance: str


class Session:
    """A group's all-reduces by the reducers: `start` once, by all ranks; then `allreduce` in the order of
    calls; `close`."""

    def __init__(
        self,
        settings: Settings,
        group: Group,
        device: str,
        local: "Optional[type]",
        apart: NativeOperations,
    ) -> None:
        """`device`: cpu or cuda. `local`: the backend that could sum within a node first; None: it is not to.
        `apart`: what the group does without the reducers."""
        self._settings = settings
        self._group = group
        self._device = device
        self._local = local
        self._apart = apart
        self._prefix = "trainshed/{}/{}/{}".format(group.name, group.instance, device)
        self._board = StoreBoard(group.store, self._prefix)
        self._communicator: Optional[Communicator] = None
        self._pipeline: Optional[Pipeline] = None
        self._chooser: Optional[Chooser] = None
        self._chooses = may_choose(settings, device)
        self._nodes: Optional[List[List[int]]] = None
        self._place = (group.rank, group.world)
        self._speech = _LogWriter()
        #: Whether it was this rank that could not.
        self.is_to_blame = False

    def start(self) -> str:
        """Why the group stays native, "" if it does not; alike on all ranks, but that a rank whose own
        failure it is says more. Blocks for a few times the start limit at most. Raises ReductionFailed: the
        others count on this rank and it cannot."""
        own = ""
        try:
            refusal = self._plan()
            if refusal:
                return refusal
            self._connect()
            self._try_out()
        except Exception as error:
            # Whatever it is, the others wait for an answer, and the program can do without.
            own = str(error) or type(error).__name__
        self._board.post("tried/{}".format(self._group.rank), own.encode()[:1000])
        refusal = self._conclude(own)
        if refusal:
            self.is_to_blame = bool(own)
            self.close()
        self._speech.is_due = not refusal
        return refusal

    def speak(self) -> None:
        """This rank says from here on what is chosen."""
        self._speech.is_aloud = True

    def describe(self) -> str:
        assert self._communicator is not None
        text = self._communicator.describe()
        if self._nodes is not None:
            text += ", after a sum within each of {} nodes".format(len(self._nodes))
        return text

    def allreduce(
        self, tensor: torch.Tensor, reduction: Reduction, ordinal: int, natively: Natively
    ) -> Optional[dist.Work]:
        """Begin it in place. `natively`: called where that was measured to be faster. None: no reducer is
        left, and it is the native backend's, as all later ones are. Raises ReductionFailed."""
        assert self._communicator is not None
        if self._chooser is not None:
            return self._chooser.allreduce(tensor, reduction, ordinal, natively)
        if self._pipeline is not None:
            return self._pipeline.submit(tensor, reduction, ordinal)
        operation = self._communicator.issue(
            bytes_of(tensor), DTYPES[tensor.dtype], reduction, ordinal
        )
        return None if operation is None else ReductionWork(operation, [tensor])

    def close(self) -> None:
        if self._communicator is not None:
            self._communicator.close()
        if self._pipeline is not None:
            self._pipeline.close()

    def _plan(self) -> str:
        group = self._group
        own = json.dumps({"alike": self._alike(), "node": _node()}).encode()
        self._board.post("plan/{}".format(group.rank), own)
        if group.rank == 0:
            found = self._board.answers("plan", group.world, self._settings.start_seconds)
            self._board.settle("plan", self._plan_of(found))
        answer = self._board.verdict("plan", self._settings.start_seconds)
        if not answer.startswith(b"+"):
            return answer.decode(errors="replace")
        self._nodes = json.loads(answer[1:].decode())
        return ""

    def _plan_of(self, found: Sequence[Optional[bytes]]) -> bytes:
        """Rank 0's decision: + and the nodes that sum within themselves first (or null); or what is wrong."""
        missing = [str(rank) for rank, answer in enumerate(found) if answer is None]
        if missing:
            return "rank {} did not say in time that it has reducers (is trainshed_reduction there?)".format(
                ", ".join(missing)
            ).encode()
        said = [json.loads(answer.decode()) for answer in found if answer is not None]
        for rank, theirs in enumerate(said):
            names = _differences(said[0]["alike"], theirs["alike"])
            if names:
                return "rank 0 and rank {} have different settings: {}".format(
                    rank, ", ".join(names)
                ).encode()
        try:
            nodes = nodes_of([theirs["node"] for theirs in said]) if self._local else None
        except UnevenNodes as uneven:
            return str(uneven).encode()
        if nodes is not None and len(nodes) == 1:
            return b"all ranks are on one node"
        return b"+" + json.dumps(nodes).encode()

    def _alike(self) -> Dict[str, object]:
        """What all ranks must have alike, lest they disagree on an operation's way or its chunks."""
        settings = self._settings
        return {
            "version": wire.VERSION,
            "reducers": ["{}:{}".format(*each) for each in settings.reducers],
            "smallest": settings.min_bytes,
            "chunk": settings.chunk_bytes,
            "mode": settings.mode,
            "bandwidths": [settings.worker_gbps, settings.reducer_gbps],
            "node first": self._local is not None,
            "choice": self._chooses,
        }

    def _connect(self) -> None:
        group = self._group
        name, rank, world = "{}/{}".format(group.name, self._device), group.rank, group.world
        node = None
        if self._nodes is not None:
            assert self._local is not None
            node = Node(self._local, self._nodes, group.rank, self._board_store("node"))
            name, rank, world = "{}/{}".format(name, node.place), node.number, len(self._nodes)
        store = self._board_store("peers/{}".format(node.place if node else "all"))
        limit = self._settings.wait_seconds
        self._communicator = Communicator(
            self._settings,
            group=name,
            rank=rank,
            world=world,
            board=StoreBoard(store, "board"),
            native=Fallback(store, "finish", rank, world, limit),
            apart=self._apart,
            reports=process.reports(),
            log=self._speech.say,
        )
        self._communicator.start()
        if node is not None or self._device == "cuda":
            after = Fallback(store, "after", rank, world, limit)
            self._pipeline = Pipeline(self._communicator, after, self._device, node)
        elif self._chooses:
            self._chooser = Chooser(
                self._communicator, self._settings, rank, world, self._speech.tell
            )
        self._place = (rank, world)

    def _board_store(self, part: str) -> dist.Store:
        clone = getattr(self._group.store, "clone", None)
        store = self._group.store if clone is None else clone()
        return dist.PrefixStore("{}/{}".format(self._prefix, part), store)

    def _try_out(self) -> None:
        """Add what each rank knows the sum of. Raises ReductionFailed."""
        assert self._communicator is not None
        rank, world = self._place
        for code, dtype in (("f", DType.FLOAT32), ("q", DType.INT64)):
            numbers = array.array(code, [rank + 1, -2 * (rank + 1)])
            operation = self._communicator.issue(
                memoryview(numbers).cast("B"), dtype, Reduction.SUM, 0
            )
            if operation is None or not operation.wait(self._settings.start_seconds):
                raise ReductionFailed("the first sum did not come")
            whole = world * (world + 1) // 2
            if list(numbers) != [whole, -2 * whole]:
                raise ReductionFailed(
                    "the first sum of {} was {} and not {}".format(
                        dtype.name, list(numbers), [whole, -2 * whole]
                    )
                )

    def _conclude(self, own: str) -> str:
        """`own`: this rank's failure, or "". What becomes of the group."""
        limit = self._settings.start_seconds
        if self._group.rank == 0:
            found = self._board.answers("tried", self._group.world, limit)
            self._board.settle("tried", _judge(found))
        answer = self._board.verdict("tried", 2 * limit)
        if answer != b"+":
            return own or answer.decode(errors="replace")
        if own:  # Its word came too late.
            raise ReductionFailed("the other ranks use the reducers, and this one cannot: " + own)
        return ""


class _LogWriter:
    """A communicator's lines for the log. Not a method of the session's: a cycle would keep the group's
    store, and with it the server that the next group would meet at, until the garbage collector comes."""

    def __init__(self) -> None:
        #: What is said before that all ranks say together (`_conclude`).
        self.is_due = False
        self.is_aloud = False

    def say(self, text: str) -> None:
        if self.is_due:
            process.say(text)

    def tell(self, note: str, text: str, severity: str) -> None:
        """By one rank, what all have chosen: in the report, and in the log where nobody reads that."""
        if self.is_aloud:
            process.tell(note, text, severity)


def _judge(found: Sequence[Optional[bytes]]) -> bytes:
    failed = [(rank, answer) for rank, answer in enumerate(found) if answer != b""]
    if not failed:
        return b"+"
    rank, answer = failed[0]
    text = "did not get ready in time" if answer is None else answer.decode(errors="replace")
    more = " (and {} more)".format(len(failed) - 1) if len(failed) > 1 else ""
    return "rank {}: {}{}".format(rank, text, more).encode()


def _node() -> Dict[str, object]:
    """Where this process is: torchrun's words for it, the service's, or the host's name."""
    replica = os.environ.get(REPLICA, "")
    return {
        "name": os.environ.get("GROUP_RANK") or replica or socket.gethostname(),
        "processes": os.environ.get("LOCAL_WORLD_SIZE", "1"),
        "replica": replica,
    }


def node_first(backend: "Optional[type]") -> "Optional[type]":
    """The backend that sums within nodes before the reducers do: a node has one link, however many ranks."""
    known = backend is not None and backend.__name__ in ("ProcessGroupNCCL", "ProcessGroupGloo")
    return backend if known and os.environ.get(NODE_FIRST) != "0" else None


_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
# What a rank waits beyond rank 0's own limit, so that rank 0's answer is there first.
_GRACE = 5.0


class StoreBoard:
    """A `client.port.Board` in a store; `prefix` is the group's alone, and new each time that the group is
    made.

    The ranks agree by it on how to begin, on whether all can, and later on lost reducers. By a store and not
    the group's own collectives, because a rank may be without this package (another image): its first
    collective must not meet one of ours, and NCCL must not be used before the program has chosen its device.
    """

    def __init__(self, store: dist.Store, prefix: str) -> None:
        # A clone has a connection of its own: who waits there is in nobody's way.
        clone = getattr(store, "clone", None)
        self._store = dist.PrefixStore(prefix, store if clone is None else clone())
        self._is_gone = False

    def post(self, key: str, value: bytes) -> None:
        self._store.set(key, value)

    def read(self, key: str, seconds: float) -> Optional[bytes]:
        """None as well if the store has gone, with the rank that had it: nobody writes there any more."""
        # Polled: a store's own wait prints a warning when it is over, and cannot be interrupted.
        until = time.monotonic() + seconds
        pause = _FIRST_PAUSE
        while not self._has(key):
            if self._is_gone or time.monotonic() >= until:
                return None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return bytes(self._store.get(key))

    def _has(self, key: str) -> bool:
        if not self._is_gone:
            try:
                return bool(self._store.check([key]))
            except RuntimeError:
                self._is_gone = True
        return False

    def settle(self, key: str, value: bytes) -> bytes:
        """Write it unless somebody has: what all read there. `value`: not empty."""
        return bytes(self._store.compare_set(key, "", value))

    def answers(self, question: str, world: int, seconds: float) -> List[Optional[bytes]]:
        """What each rank has posted as its answer within the time; None for those that have not."""
        until = time.monotonic() + seconds
        return [
            self.read("{}/{}".format(question, rank), max(0.0, until - time.monotonic()))
            for rank in range(world)
        ]

    def verdict(self, question: str, seconds: float) -> bytes:
        """What rank 0 made of the answers. If rank 0 says nothing in time, all ranks learn that, rank 0
        included."""
        found = self.read(question, seconds + _GRACE)
        if found is None:
            found = self.settle(question, b"rank 0 does not answer")
        return found


def _differences(ours: Dict[str, object], theirs: Dict[str, object]) -> List[str]:
    """Names of what must be alike on all ranks and is not."""
    return sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
