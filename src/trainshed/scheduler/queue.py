"""The gangs that wait, in the order in which they come: priority, on-demand before spot, project, age.

Each (level, project) keeps its gangs in buckets of one shape, so that a decision looks at the head of a bucket and
never at all that wait.
"""

from bisect import bisect_left, insort

from trainshed.core.names import JobUid
from trainshed.scheduler.books import Age, Entry, Shape

LevelKey = tuple[int, bool]
"""(minus priority, spot): of equal priority, what on-demand work would take away again is not given to spot work."""


def level_of(entry: Entry) -> LevelKey:
    return (-entry.gang.priority, entry.gang.spot)


class Group:
    """What waits of one project on one level. `ages`: all of it; `buckets` and `heads`: what may start now."""

    __slots__ = ("ages", "buckets", "entries", "heads", "sums")

    def __init__(self) -> None:
        self.ages: list[Age] = []
        self.entries: dict[Age, Entry] = {}
        self.buckets: dict[Shape, list[Age]] = {}
        self.heads: list[Age] = []
        self.sums: dict[str, int] = {}

    def add(self, entry: Entry) -> None:
        insort(self.ages, entry.age)
        self.entries[entry.age] = entry
        self._count(entry, 1)

    def drop(self, entry: Entry) -> None:
        del self.ages[bisect_left(self.ages, entry.age)]
        del self.entries[entry.age]
        self._count(entry, -1)

    def ripen(self, entry: Entry) -> None:
        """It may start from now on."""
        bucket = self.buckets.get(entry.shape)
        if bucket is None:
            self.buckets[entry.shape] = [entry.age]
            insort(self.heads, entry.age)
            return
        if entry.age < bucket[0]:
            del self.heads[bisect_left(self.heads, bucket[0])]
            insort(self.heads, entry.age)
        insort(bucket, entry.age)

    def wither(self, entry: Entry) -> None:
        """The opposite of `ripen`."""
        bucket = self.buckets[entry.shape]
        at = bisect_left(bucket, entry.age)
        del bucket[at]
        if at == 0:
            del self.heads[bisect_left(self.heads, entry.age)]
            if bucket:
                insort(self.heads, bucket[0])
            else:
                del self.buckets[entry.shape]

    def _count(self, entry: Entry, times: int) -> None:
        for what, amount in entry.takes:
            self.sums[what] = self.sums.get(what, 0) + amount * times


class Queue:
    """All that waits. `levels` by key, each with its groups by project id."""

    def __init__(self) -> None:
        self.levels: dict[LevelKey, dict[str, Group]] = {}
        self.order: list[LevelKey] = []
        self.sizes: dict[LevelKey, int] = {}
        self._delayed: list[tuple[int, JobUid]] = []
        self._unripe: dict[JobUid, Entry] = {}

    def __len__(self) -> int:
        return sum(self.sizes.values())

    def add(self, entry: Entry) -> None:
        key = level_of(entry)
        groups = self.levels.get(key)
        if groups is None:
            groups = self.levels[key] = {}
            insort(self.order, key)
            self.sizes[key] = 0
        group = groups.get(entry.gang.project_id)
        if group is None:
            group = groups[entry.gang.project_id] = Group()
        group.add(entry)
        self.sizes[key] += 1
        if entry.standing.not_before:
            self._unripe[entry.gang.uid] = entry
            insort(self._delayed, (entry.standing.not_before, entry.gang.uid))
        else:
            group.ripen(entry)

    def drop(self, entry: Entry) -> None:
        key = level_of(entry)
        groups = self.levels[key]
        group = groups[entry.gang.project_id]
        if self._unripe.pop(entry.gang.uid, None) is not None:
            wait = (entry.standing.not_before, entry.gang.uid)
            del self._delayed[bisect_left(self._delayed, wait)]
        else:
            group.wither(entry)
        group.drop(entry)
        self.sizes[key] -= 1
        if not group.ages:
            del groups[entry.gang.project_id]
        if not groups:
            del self.levels[key], self.sizes[key]
            del self.order[bisect_left(self.order, key)]

    def group(self, entry: Entry) -> Group:
        return self.levels[level_of(entry)][entry.gang.project_id]

    def ripen(self, now: int) -> int:
        """Let those start whose pause is over at `now`; when the next one's is (ns), 0 = none pauses."""
        while self._delayed and self._delayed[0][0] <= now:
            _, uid = self._delayed.pop(0)
            entry = self._unripe.pop(uid)
            self.group(entry).ripen(entry)
        return self._delayed[0][0] if self._delayed else 0
