"""The sessions of a process group with the reducers: one for each kind of device (CPU, CUDA).

Either all ranks of a group use the reducers, or none does. Every rank takes three steps, each with a time
limit. First, the ranks agree on the settings and on the layout of nodes. Then they connect to the reducers.
Finally, they agree whether all ranks are connected. If a rank fails in any step, all ranks use the native
backend.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from typing import Callable, ClassVar, Dict, List, NamedTuple, Optional

import torch
import torch.distributed as dist

from trainshed_reduction import process, wire
from trainshed_reduction.client.communicator import Communicator
from trainshed_reduction.client.operations import ReductionFailed
from trainshed_reduction.pytorch import usage
from trainshed_reduction.pytorch.hierarchy import Node, UnevenNodes, node_first, nodes_of, own_place
from trainshed_reduction.pytorch.pipeline import Pipeline
from trainshed_reduction.pytorch.work import issue
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import Reduction

# The ranks agree through PyTorch's store instead of collectives, for two reasons. A rank with another image
# may lack this package, and its collectives would not match. NCCL must not be used before the program has
# chosen its device.

_FIRST_INTERVAL = 0.002
_MAX_INTERVAL = 0.1
# Additional seconds for which other ranks wait for rank 0's decision, because rank 0 itself waits for the
# answers of all ranks.
_ANSWER_GRACE = 5.0


def separate_view(store: dist.Store, prefix: str) -> dist.Store:
    """Return a view of the store with its own keys and its own connection. A wait on this connection does not
    block other users of the store."""
    clone = getattr(store, "clone", None)
    return dist.PrefixStore(prefix, store if clone is None else clone())


class StoreBoard:
    """Lets the ranks of a group agree on decisions through PyTorch's store. The store must not contain keys
    of an earlier group."""

    def __init__(self, store: dist.Store) -> None:
        self._store = store
        self._is_lost = False

    def read(self, key: str, seconds: float) -> Optional[bytes]:
        """Wait for the value of a key, for at most `seconds`. None = no rank has written it in time, or the
        host of the store is lost."""
        # Poll, because the store's own wait cannot be interrupted, and prints a warning after its timeout.
        until = time.monotonic() + seconds
        interval = _FIRST_INTERVAL
        while not self._has(key):
            if self._is_lost or time.monotonic() >= until:
                return None
            time.sleep(interval)
            interval = min(2 * interval, _MAX_INTERVAL)
        return bytes(self._store.get(key))

    def _has(self, key: str) -> bool:
        if not self._is_lost:
            try:
                return bool(self._store.check([key]))
            except RuntimeError:
                self._is_lost = True
        return False

    def decide(
        self,
        question: str,
        rank: int,
        world: int,
        own: bytes,
        judge: "Callable[[List[Optional[bytes]]], bytes]",
        *,
        seconds: float,
        rounds: int = 1,
    ) -> bytes:
        """Return rank 0's decision about the answers of all ranks. The decision is the same on all ranks.

        `own`: this rank's answer. `judge`: returns the decision, which must not be empty, from the answers by
        rank (None = no answer within `seconds`). `rounds`: the other ranks wait for `seconds` times this
        number. If rank 0 does not respond in that time, the decision on all ranks is an error message about
        rank 0."""
        self._store.set("{}/{}".format(question, rank), own)
        if rank == 0:
            until = time.monotonic() + seconds
            answers = [
                self.read("{}/{}".format(question, member), max(0.0, until - time.monotonic()))
                for member in range(world)
            ]
            self._write_once(question, judge(answers))
        decision = self.read(question, rounds * seconds + _ANSWER_GRACE)
        if decision is None:
            return self._write_once(question, b"rank 0 does not respond")
        return decision

    def _write_once(self, key: str, value: bytes) -> bytes:
        """Write a value, unless the key exists. Return the key's value, which is the same on all ranks."""
        return bytes(self._store.compare_set(key, "", value))


class Group(NamedTuple):
    """The data of a process group. `backends`: classes of the native backends, by kind of device.

    This object does not refer to PyTorch's group. Such a reference could create a reference cycle, and the
    garbage collector might destroy the group in a forked child, where gloo's threads are missing.
    """

    name: str
    rank: int
    world: int
    store: dist.Store
    backends: Dict[str, type]


class Sessions:
    """The sessions of one process group, by kind of device."""

    #: Name of the current group of all ranks. It is unique in this process.
    _world: ClassVar[str] = ""

    def __init__(
        self, group: dist.ProcessGroup, settings: Settings, name: str, store: dist.Store, is_world: bool
    ) -> None:
        """All ranks must create this object at the same place in the program. `name`: the name of the group,
        which is the same on all ranks. `is_world`: whether it is the group of all ranks."""
        rank = group.rank()
        if is_world:
            Sessions._world = str(store.add("trainshed/made/{}".format(rank), 1))
        # The store may contain keys of an earlier group with the same name. The counter gives this group its
        # own keys.
        count = store.add("trainshed/{}/{}/made/{}".format(Sessions._world, name, rank), 1)
        own = dist.PrefixStore("trainshed/{}/{}.{}".format(name, Sessions._world, count), store)
        backends = {device.type: type(group._get_backend(device)) for device in group._device_types}
        self.settings = settings
        self._group = Group(name, rank, group.size(), own, backends)
        self._is_world = is_world
        self._lock = threading.Lock()
        self._by_device: Dict[str, Session] = {}
        process.close_at_exit(self)

    def connect(self) -> None:
        """Connect all ranks to the reducers now, for the kind of device that most tensors use."""
        nccl = getattr(self._group.backends.get("cuda"), "__name__", "") == "ProcessGroupNCCL"
        self.of("cuda" if nccl else "cpu").connect()

    def of(self, device: str) -> Session:
        with self._lock:
            if device not in self._by_device:
                is_aloud = self._is_world and not self._by_device
                self._by_device[device] = Session(self.settings, self._group, device, is_aloud)
            return self._by_device[device]

    def close(self) -> None:
        for session in self._by_device.values():
            session.close()
        process.remove_at_exit(self)


class Session:
    """The all-reduces of a group for one kind of device, in the order of calls."""

    def __init__(self, settings: Settings, group: Group, device: str, is_aloud: bool) -> None:
        """`device`: cpu or cuda. `is_aloud`: whether rank 0 reports to the user if the group uses the
        reducers."""
        self._ordinals = itertools.count(1)
        self._settings = settings
        self._group = group
        self._device = device
        self._is_aloud = is_aloud and group.rank == 0
        #: The backend that first sums within a node; None = every rank uses the reducers directly.
        self._local = node_first(group.backends.get(device))
        self._store = dist.PrefixStore(device, group.store)
        self._lock = threading.Lock()
        self._serves: Optional[bool] = None
        self._nodes: Optional[List[List[int]]] = None
        self._generation = 0
        self._communicator: Optional[Communicator] = None
        self._pipeline: Optional[Pipeline] = None

    def connect(self) -> bool:
        """Connect to the reducers, if that was not tried before. Return whether all ranks use the reducers.

        All ranks must make the first call at the same place in the program. The first call blocks for up to a
        few times `start_seconds`. Raises ReductionFailed if this rank has failed although the other ranks use
        the reducers.
        """
        with self._lock:
            if self._serves is None:
                self._serves = self._try_to_connect()
            return self._serves

    def allreduce(self, tensor: torch.Tensor, reduction: Reduction) -> Optional[dist.Work]:
        """Start an all-reduce in place, or return None if the native backend must execute it. Raises
        ReductionFailed if the session has failed."""
        if not self.connect():
            return None
        assert self._communicator is not None
        ordinal = next(self._ordinals)
        if self._pipeline is not None:
            return self._pipeline.submit(tensor, reduction, ordinal)
        return issue(self._communicator, tensor, reduction, ordinal)

    def close(self) -> None:
        if self._communicator is not None:
            self._communicator.close()
        if self._pipeline is not None:
            self._pipeline.close()

    def _try_to_connect(self) -> bool:
        board = StoreBoard(separate_view(self._store, "board"))
        # Until all ranks have agreed, drop the log lines of the communicator: the ranks then report one
        # common reason.
        is_due = threading.Event()
        refusal, own = None, ""
        try:
            refusal = self._plan(board)
            if not refusal:
                self._start_communicator(is_due)
        except Exception as error:
            # Catch any error. The other ranks wait for an answer, and the program also works without
            # reducers.
            own = str(error) or type(error).__name__
        refusal = refusal or self._conclude(board, own)
        usage.record.is_refused |= bool(refusal)
        if refusal:
            if own or self._is_aloud:
                text = "native all-reduce is used: " + (own or refusal)
                process.report("native", text, "WARNING")
            self.close()
            return False
        is_due.set()
        if self._is_aloud:
            assert self._communicator is not None
            text = self._communicator.describe()
            if self._nodes is not None:
                text += ", after a sum within each of {} nodes".format(len(self._nodes))
            process.report("mode", text)
        return True

    # ---- the three steps (see the docstring of this module)

    def _plan(self, board: StoreBoard) -> Optional[str]:
        """Agree with the other ranks on the settings and the nodes. Return the reason why the reducers cannot
        be used, or None if they may be usable."""
        settings = self._settings
        # These values must be the same on all ranks. Otherwise ranks would disagree on whether reducers
        # execute an operation, or on its chunks.
        alike = {
            "version": wire.VERSION,
            "reducers": ["{}:{}".format(*reducer) for reducer in settings.reducers],
            "smallest": settings.min_bytes,
            "chunk": settings.chunk_bytes,
            "bandwidths": [settings.worker_gbps, settings.reducer_gbps],
            "node first": self._local is not None,
        }
        answer = board.decide(
            "plan",
            self._group.rank,
            self._group.world,
            json.dumps({"alike": alike, "node": own_place()}).encode(),
            self._plan_of,
            seconds=settings.start_seconds,
        )
        if not answer.startswith(b"+"):
            return answer.decode(errors="replace")
        self._nodes, self._generation = json.loads(answer[1:].decode())
        return None

    def _plan_of(self, answers: List[Optional[bytes]]) -> bytes:
        """Return rank 0's decision, from the answers of all ranks. The decision is an error message, or "+"
        with two values in JSON: the ranks of each node if nodes sum locally first (otherwise null), and the
        generation of the group."""
        missing = [str(rank) for rank, answer in enumerate(answers) if answer is None]
        if missing:
            return "rank {} did not report reducers in time: does it have trainshed_reduction?".format(
                ", ".join(missing)
            ).encode()
        plans = [json.loads(answer) for answer in answers if answer is not None]
        ours = plans[0]["alike"]
        for rank, plan in enumerate(plans):
            theirs = plan["alike"]
            names = sorted(key for key in {*ours, *theirs} if ours.get(key) != theirs.get(key))
            if names:
                return "rank 0 and rank {} have different settings: {}".format(
                    rank, ", ".join(names)
                ).encode()
        try:
            nodes = nodes_of([plan["node"] for plan in plans]) if self._local else None
        except UnevenNodes as uneven:
            return str(uneven).encode()
        if nodes is not None and len(nodes) == 1:
            return b"all ranks are on one node"
        # The generation must be greater than the generations of earlier attempts, and of earlier groups in
        # this attempt.
        generation = (self._settings.attempt << 48) | int(time.time() * 1000) & (2**48 - 1)
        return b"+" + json.dumps([nodes, generation]).encode()

    def _start_communicator(self, is_due: threading.Event) -> None:
        """Create the communicator and connect it. Raises ReductionFailed if that fails, and exceptions of
        PyTorch and of the system."""
        settings, group = self._settings, self._group
        name, rank, world = "{}/{}".format(group.name, self._device), group.rank, group.world
        node = None
        if self._nodes is not None:
            assert self._local is not None
            node = Node(self._local, self._nodes, group.rank, separate_view(self._store, "node"))
            name, rank, world = "{}/{}".format(name, node.place), node.number, len(self._nodes)
        self._communicator = communicator = Communicator(
            settings,
            group=name,
            rank=rank,
            world=world,
            generation=self._generation,
            reports=process.reports(),
            # Do not use a method of this object, because it would create a reference cycle. Such a cycle
            # would keep the group's store, and with it the port of the store's server, which the next group
            # needs, until the next garbage collection.
            log=lambda text: process.log(text) if is_due.is_set() else None,
        )
        communicator.start()
        if node is not None or self._device == "cuda":
            self._pipeline = Pipeline(communicator, self._device, node)

    def _conclude(self, board: StoreBoard, own: str) -> Optional[str]:
        """Agree with the other ranks whether all of them have connected. Return the reason for using the
        native backend, or None. `own`: why this rank has failed; "" = it has not failed."""
        group = self._group
        answer = board.decide(
            "tried",
            group.rank,
            group.world,
            own.encode()[:1000],
            _judge,
            seconds=self._settings.start_seconds,
            rounds=2,  # Wait longer, because rank 0 answers only after its own attempt to connect.
        )
        if answer == b"+":
            if own:  # This rank failed after the other ranks had decided.
                raise ReductionFailed("the other ranks use the reducers, but this rank cannot: " + own)
            return None
        return answer.decode(errors="replace")


def _judge(answers: List[Optional[bytes]]) -> bytes:
    """Return rank 0's decision: "+" if no rank has failed, or otherwise the first failed rank and its reason.
    `answers`: by rank, why the rank has failed (empty = it has not failed, None = it did not answer)."""
    failed = [(rank, answer) for rank, answer in enumerate(answers) if answer != b""]
    if not failed:
        return b"+"
    rank, answer = failed[0]
    text = "did not get ready in time" if answer is None else answer.decode(errors="replace")
    more = " (and {} more)".format(len(failed) - 1) if len(failed) > 1 else ""
    return "rank {}: {}{}".format(rank, text, more).encode()
