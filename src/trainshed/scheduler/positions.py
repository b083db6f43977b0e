"""How many jobs stand before one that waits (`ml` jobPosition, SPEC §2)."""

from bisect import bisect_left

from trainshed.core.names import JobUid
from trainshed.scheduler.books import Age, share
from trainshed.scheduler.queue import Group, LevelKey, level_of
from trainshed.scheduler.snapshot import Snapshot


def position(snapshot: Snapshot, uid: JobUid) -> int:
    """1 = next, among all that wait, in the order of a plan; 0 = it does not wait.

    Counted, not played through: as if every job of a project on one level were of their average size, and as if
    all of them fitted.
    """
    entry = snapshot.entries.get(uid)
    if entry is None or not entry.waits:
        return 0
    queue = snapshot.queue
    level = level_of(entry)
    levels = queue.order[: bisect_left(queue.order, level)]
    own = queue.group(entry)
    used = _used(snapshot, levels, entry.gang.project_id)
    turn = _key(snapshot, used, own, bisect_left(own.ages, entry.age))
    before = sum(queue.sizes[key] for key in levels)
    for project_id, group in queue.levels[level].items():
        before += _earlier(snapshot, _used(snapshot, levels, project_id), group, turn)
    return before + 1


def _used(snapshot: Snapshot, levels: list[LevelKey], project_id: str) -> dict[str, int]:
    """What a project uses when all that waits on these levels has started."""
    used = dict(snapshot.projects[project_id].used)
    for key in levels:
        group = snapshot.queue.levels[key].get(project_id)
        for what, amount in group.sums.items() if group else ():
            used[what] = used.get(what, 0) + amount
    return used


def _earlier(
    snapshot: Snapshot, used: dict[str, int], group: Group, turn: tuple[float, Age]
) -> int:
    """How many of a project's jobs have their turn before that one. Its turns only get later."""
    low, high = 0, len(group.ages)
    while low < high:
        middle = (low + high) // 2
        if _key(snapshot, used, group, middle) < turn:
            low = middle + 1
        else:
            high = middle
    return low


def _key(snapshot: Snapshot, before: dict[str, int], group: Group, at: int) -> tuple[float, Age]:
    """What the turn of a project's job number `at` is sorted by: the share when the ones before it have started."""
    count = len(group.ages)
    used = before.copy()
    for what, amount in group.sums.items():
        used[what] = used.get(what, 0) + amount * at // count
    return (share(used, snapshot.totals), group.ages[at])
