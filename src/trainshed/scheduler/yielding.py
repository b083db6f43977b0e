"""Which spot gangs give their room to on-demand work: as few as do, the lowest priority and the youngest first."""

from collections.abc import Sequence

from trainshed.core.names import JobUid
from trainshed.scheduler.books import Entry
from trainshed.scheduler.needs import Need
from trainshed.scheduler.rooms import Kinds, Part, Rooms, holds
from trainshed.scheduler.scratch import Scratch
from trainshed.scheduler.snapshot import Snapshot, cheapness

_LOOKED_AT = 256
"""With more spot gangs than that, not each is looked at for each need."""


class Preemption:
    """Room that comes in the course of one decision: what is being given back, and what spot work may be asked for.

    `leaving`: gangs whose room comes, those included that are asked in this decision.
    """

    def __init__(self, snapshot: Snapshot, scratch: Scratch) -> None:
        self._snapshot = snapshot
        self._scratch = scratch
        self.leaving = dict(sorted(snapshot.leaving.items()))
        self._spot = [snapshot.entries[JobUid(-uid)] for _, _, uid in snapshot.spot]
        self._most: Rooms | None = None

    @property
    def possible(self) -> bool:
        return bool(self.leaving or self._spot)

    @property
    def _looks_first(self) -> bool:
        """Whether the best case says anything."""
        return self._scratch.strict

    def room_for(self, entry: Entry, need: Need, kinds: Kinds | None = None) -> list[Entry] | None:
        """Whom to ask so that the gang, or `kinds` of it, can start; nobody where the room that comes anyway will do;
        None if it could not start even so. `need` afterwards imagines all that comes gone."""
        if self._looks_first and holds(self._best_case(), kinds or entry.shape.kinds) is None:
            return None
        for gang in self.leaving.values():
            need.add(gang)
        if need.met:
            return []
        chosen = victims(need, self._candidates(entry, kinds)) if not entry.gang.spot else None
        for victim in chosen or ():
            self.leaving[victim.gang.uid] = victim
        return chosen

    def claim(self, parts: Sequence[Part]) -> None:
        """Room that is kept for one cannot be had by another."""
        if self._most is not None:
            for part in parts:
                self._most.take(part.node, part.kind, part.count)

    def _candidates(self, entry: Entry, kinds: Kinds | None) -> list[Entry]:
        """Who may be asked. Spot work of a higher priority is not: it would only take the room again. Where there is
        much, those on the nodes that would be best."""
        found = [
            spot
            for spot in self._spot
            if spot.gang.priority <= entry.gang.priority
            and spot.gang.uid not in self.leaving
            and spot is not entry
        ]
        if len(found) <= _LOOKED_AT:
            return found
        if not self._looks_first:
            return found[:_LOOKED_AT]
        places = holds(self._best_case(), kinds or entry.shape.kinds) or []
        nodes = {part.node for part in places}
        short = [m for m, a in entry.meters if not kinds and self._scratch.left(m) < a]
        return [
            spot
            for spot in found
            if not nodes.isdisjoint(spot.held) or any(spot.gang.uid in m.holders for m in short)
        ]

    def _best_case(self) -> Rooms:
        """The nodes as they would be without any spot work. Not to be relied on for more than a first look."""
        if self._most is None:
            self._most = Rooms()
            for node in self._snapshot.free:
                layout, vector = self._snapshot.free.layout(node), self._snapshot.free.vector(node)
                self._most.add(node, layout, vector)
            for node in self._scratch.guarded:
                self._add_guarded(self._most, node)
            for gang in (*self.leaving.values(), *self._spot):
                self._add_gang(self._most, gang)
        return self._most

    def _add_guarded(self, rooms: Rooms, node: str) -> None:
        found = self._scratch.base(node)
        if found is not None:
            rooms.add(node, *found)

    def _add_gang(self, rooms: Rooms, gang: Entry) -> None:
        for node, kinds in gang.held.items():
            if node in rooms:
                for kind in kinds:
                    rooms.take(node, kind, -1)


def victims(need: Need, candidates: Sequence[Entry]) -> list[Entry] | None:
    """The gangs to preempt, each of them needed; None if not even all of them would do.

    `need` imagines already gone what is leaving; afterwards it imagines the victims gone, too.
    `candidates` ascend by cheapness.
    """
    useful = [entry for entry in candidates if need.add(entry)]
    met = need.met
    _all(need, useful, -1)
    if not met:
        return None
    found = _alone(need, useful) or _fewest(need, useful)
    _all(need, found, 1)
    return found


def _alone(need: Need, candidates: Sequence[Entry]) -> list[Entry]:
    for entry in candidates[:_LOOKED_AT]:
        need.add(entry)
        met = need.met
        need.add(entry, -1)
        if met:
            return [entry]
    return []


def _fewest(need: Need, candidates: Sequence[Entry]) -> list[Entry]:
    """The smallest set found by taking them in several orders and leaving out what turns out not to be needed."""

    def size(entry: Entry) -> int:
        return -sum(amount for _, amount in entry.takes)

    by_node: list[Entry] = []
    nodes: dict[str, list[Entry]] = {}
    for entry in candidates:
        for node in entry.held:
            nodes.setdefault(node, []).append(entry)
    for node in sorted(nodes, key=lambda name: (len(nodes[name]), name)):
        by_node += nodes[node]
    sequences = (candidates, sorted(candidates, key=size), list(dict.fromkeys(by_node)))
    sets = [_needed(need, sequence) for sequence in sequences]
    return min(sets, key=lambda chosen: (len(chosen), sorted(cheapness(e) for e in chosen)))


def _needed(need: Need, sequence: Sequence[Entry]) -> list[Entry]:
    """The first so many that do, without those that the others make unnecessary, the dearest left out first."""
    chosen: list[Entry] = []
    for entry in sequence:
        chosen.append(entry)
        need.add(entry)
        if need.met:
            break
    for entry in sorted(chosen, key=cheapness, reverse=True):
        need.add(entry, -1)
        if need.met:
            chosen.remove(entry)
        else:
            need.add(entry)
    _all(need, chosen, -1)
    return chosen


def _all(need: Need, entries: Sequence[Entry], times: int) -> None:
    for entry in entries:
        need.add(entry, times)
