"""How far somebody's rights go on the buckets of a project: one of a few levels, each of which holds what the
level before it holds. Pure.
"""

from enum import IntEnum
from functools import lru_cache
from typing import Final

from trainshed.access.roles import ADMIN_BUCKETS, USE_OBJECTS, VIEW_OBJECTS


class Reach(IntEnum):
    """A level."""

    NOTHING = 0
    #: Reads objects, lists buckets.
    VIEW = 1
    #: Writes and deletes objects, too.
    USE = 2
    #: Makes buckets, too.
    WORK = 3
    #: Changes and deletes buckets and their policies, too.
    ADMIN = 4


_LOOK: Final = VIEW_OBJECTS | {"storage.buckets.get", "storage.buckets.list"}
_USE: Final = USE_OBJECTS | _LOOK
PERMISSIONS: Final = {
    Reach.NOTHING: frozenset[str](),
    Reach.VIEW: _LOOK,
    Reach.USE: _USE,
    Reach.WORK: _USE | {"storage.buckets.create"},
    Reach.ADMIN: ADMIN_BUCKETS,
}
"""What somebody may do who reaches so far."""
_SIGNS: Final = {
    Reach.VIEW: "storage.objects.get",
    Reach.USE: "storage.objects.create",
    Reach.WORK: "storage.buckets.create",
    Reach.ADMIN: "storage.buckets.setIamPolicy",
}
"""The permission by which each level is known."""


@lru_cache(1024)
def reach_of(permissions: frozenset[str]) -> Reach:
    """Returns the level of somebody who holds these permissions."""
    return max(
        (reach for reach, sign in _SIGNS.items() if sign in permissions), default=Reach.NOTHING
    )
