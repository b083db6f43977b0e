"""The order of projects and users on one priority level, and the number of jobs ahead of a job.

The project with the smallest usage relative to its share comes first. Usage includes past usage with a
decreasing weight. In a project, the same rule orders the users. Among a user's jobs, the oldest job comes
first.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush, heapreplace

from trainshed.core.names import JobUid
from trainshed.scheduler.entries import Entry, Shape, share
from trainshed.scheduler.snapshot import Group, LevelKey, Snapshot, level_of


class _Person:
    """One user's candidates in a project on one level, oldest first. Only one candidate of each shape is
    considered at a time."""

    def __init__(self, group: Group, heads: Sequence[Entry], is_in_vain: Callable[[Entry], bool]) -> None:
        self._is_in_vain = is_in_vain
        self._group = group
        self._heads = heads
        self._at = 0
        self._next: list[Entry] = []
        self._places: dict[Shape, int] = {}
        #: The next entry, or None if no entry remains.
        self.head: Entry | None = None
        self.advance(provided=False)

    def advance(self, *, provided: bool) -> None:
        """Continue with the next candidate. `provided`: whether the last candidate starts, so that the next
        one of its shape is considered."""
        if provided and self.head is not None:
            shape = self.head.shape
            bucket = self._group.buckets[shape]
            place = self._places[shape] = self._places.get(shape, 0) + 1
            if place < len(bucket):
                heappush(self._next, bucket[place])
        self.head = self._following()
        while self.head is not None and self._is_in_vain(self.head):
            self.head = self._following()

    def _following(self) -> Entry | None:
        head = self._heads[self._at] if self._at < len(self._heads) else None
        if self._next and (head is None or self._next[0] < head):
            return heappop(self._next)
        if head is not None:
            self._at += 1
        return head


class _Turns:
    """The candidates of several users or projects. The user or project with the smallest share is next."""

    def __init__(self, children: Iterable[tuple[Callable[[], float], "_Person | _Turns"]]) -> None:
        """`children`: the users or projects, each with a function that returns its share."""
        self._heap = [(share(), child.head, share, child) for share, child in children if child.head]
        heapify(self._heap)

    @property
    def head(self) -> Entry | None:
        """The next entry, or None if no entry remains."""
        return self._heap[0][1] if self._heap else None

    def advance(self, *, provided: bool) -> None:
        """Continue with the next entry. `provided`: whether the current entry starts now or later."""
        before, _, share, child = self._heap[0]
        child.advance(provided=provided)
        if child.head is None:
            heappop(self._heap)
        else:
            heapreplace(self._heap, (share() if provided else before, child.head, share, child))


def candidates(snapshot: Snapshot, groups: dict[str, Group], is_in_vain: Callable[[Entry], bool]) -> _Turns:
    """Yield all candidates of one level, in order. Assignments between two candidates can change the order.
    Candidates for which `is_in_vain` is true are omitted."""

    def share_of(project_id: str, person: str | None) -> float:
        used = snapshot.used.get((project_id, person), {})
        used = snapshot.past.with_present(project_id, used, person)
        return _weighted_share(snapshot, used, project_id, person)

    def of_project(project_id: str, group: Group) -> _Turns:
        # Do not compute the share of a project's only user, because it does not affect the order.
        is_alone = len(group.heads) == 1
        return _Turns(
            (float if is_alone else partial(share_of, project_id, person), _Person(group, heads, is_in_vain))
            for person, heads in group.heads.items()
        )

    return _Turns(
        (partial(share_of, project_id, None), of_project(project_id, group))
        for project_id, group in groups.items()
    )


def position(snapshot: Snapshot, uid: JobUid) -> int:
    """Return the position of a waiting gang in the order of a plan: 1 = next, 0 = the gang does not wait.

    The position is estimated without a plan. The estimate assumes that all jobs of a project on one level
    have their average size, that all of them fit, and that a project's jobs start in the order of their age.
    Gangs of a level with a reservation come first.
    """
    entry = snapshot.entries.get(uid)
    if entry is None or not entry.waits:
        return 0
    queue, level = snapshot.queue, level_of(entry)
    levels = queue.order[: bisect_left(queue.order, level)]
    before = sum(len(g.waiting) for key in levels for g in queue.levels[key].values())
    reserved = map(snapshot.entries.get, snapshot.reservations)
    first = [other for other in reserved if other and other.waits and level_of(other) == level]
    if entry in first:
        return before + first.index(entry) + 1
    turn = _level_position(snapshot, levels, entry)
    return before + turn + sum(_level_position(snapshot, levels, other) > turn for other in first)


def _level_position(snapshot: Snapshot, levels: list[LevelKey], entry: Entry) -> int:
    """Return the position of a gang among the gangs of its own level, without reservations. `levels`: the
    levels before that level."""
    groups, project_id = snapshot.queue.levels[level_of(entry)], entry.gang.project_id
    own = groups[project_id]
    at = bisect_left(own.waiting, entry)
    turn = (_share_at(snapshot, _usage(snapshot, levels, project_id), own, at), entry)
    others = ((other, group) for other, group in groups.items() if other != project_id)
    earlier = (
        _count_earlier(snapshot, _usage(snapshot, levels, other), group, turn) for other, group in others
    )
    return 1 + at + sum(earlier)


def _usage(snapshot: Snapshot, levels: list[LevelKey], project_id: str) -> dict[str, float]:
    """Return the usage of a project after all waiting gangs on these levels have started."""
    used = dict(snapshot.past.with_present(project_id, snapshot.used.get((project_id, None), {})))
    for key in levels:
        groups = snapshot.queue.levels[key]
        for what, amount in groups[project_id].sums.items() if project_id in groups else ():
            used[what] = used.get(what, 0) + amount
    return used


def _count_earlier(
    snapshot: Snapshot, used: Mapping[str, float], group: Group, turn: tuple[float, Entry]
) -> int:
    """Return the number of a project's waiting jobs that start before the gang at the position `turn`. A
    binary search is possible, because the shares only increase."""
    share, entry = turn
    first, last = (
        side(range(len(group.waiting)), share, key=partial(_share_at, snapshot, used, group))
        for side in (bisect_left, bisect_right)
    )
    # For equal shares, the older entry comes first.
    return first + sum(other < entry for other in group.waiting[first:last])


def _share_at(snapshot: Snapshot, before: Mapping[str, float], group: Group, at: int) -> float:
    """Return the share of a project whose usage is `before`, after `at` jobs of the group's average size have
    started."""
    count = len(group.waiting)
    used = dict(before)
    for what, amount in group.sums.items():
        used[what] = used.get(what, 0) + amount * at // count
    return _weighted_share(snapshot, used, group.waiting[0].gang.project_id)


def _weighted_share(
    snapshot: Snapshot, used: Mapping[str, float], project: str, person: str | None = None
) -> float:
    """Return the share of a project, or of a user in it, divided by its weight."""
    due = snapshot.weight(project, person)
    return share(used, snapshot.totals) / due if due else float("inf")
