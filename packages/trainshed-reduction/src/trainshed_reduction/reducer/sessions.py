"""All groups at this reducer, and which generation of each counts. Pure: no sockets, no clock.

The caller holds the connections: it reports what came on them and when, and carries out the effects. An older
generation is refused; a newer one ends what is left of the older.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import List, Tuple

from trainshed_reduction import proof
from trainshed_reduction.reducer.groups import Dismiss, Effect, Group, Member
from trainshed_reduction.wire import Hello, Kind

_REMEMBERED = 1024
"""Groups without connections whose generation is remembered."""


class Refusal(Exception):
    """This worker cannot take part; the text tells it why."""


class Sessions:
    """The groups that workers have come for, by name and generation."""

    def __init__(self) -> None:
        self._groups: OrderedDict[bytes, Group] = OrderedDict()

    @property
    def is_waiting(self) -> bool:
        """Whether `status` may have something to say."""
        return any(group.is_waiting for group in self._groups.values())

    def admit(self, hello: Hello, now: float) -> Tuple[Member, List[Effect]]:
        """Add a worker that has proved itself; ACCEPT must be sent before the effects. Raises Refusal."""
        group = self._groups.get(hello.group)
        effects: List[Effect] = []
        if group is None:
            group = self._begin(hello, now)
        elif _age(hello, group) < 0:
            raise Refusal(
                f"generation {hello.generation} is older than {group.generation}: these workers were "
                "replaced, or the other ranks have given up a reducer and gone on"
            )
        elif _age(hello, group) > 0:
            former = group
            group = self._begin(hello, now)
            effects = _supersede(former, group, hello)
        elif group.failure and hello.generation:
            raise Refusal(group.failure)
        elif hello.world != group.world:
            text = (
                f"rank {hello.rank} says that the group has {hello.world} workers, the others say "
                f"{group.world}"
            )
            if not group.is_empty:
                # Only a worker that knows the generation surely belongs to it.
                if group.generation or not hello.generation:
                    raise Refusal(text)
                effects = group.fail(text)
            generation = hello.generation or group.generation
            group = self._begin(hello._replace(generation=generation), now)
        else:
            group.generation = group.generation or hello.generation
        self._groups.move_to_end(hello.group)
        member = Member(hello, group)
        return member, effects + group.gather(member, now)

    def _begin(self, hello: Hello, now: float) -> Group:
        empty = [name for name, group in self._groups.items() if group.is_empty]
        if len(empty) >= _REMEMBERED:
            del self._groups[empty[0]]
        group = Group(hello, now)
        self._groups[hello.group] = group
        return group

    def status(self, now: float) -> List[Effect]:
        """Remind members that wait; to be called once a second while `is_waiting`."""
        effects: List[Effect] = []
        for group in self._groups.values():
            if group.is_waiting:
                effects += group.status(now)
        return effects


def _age(hello: Hello, group: Group) -> int:
    """Return a number below 0 if the worker's generation is older than the group's, above 0 if newer."""
    if not hello.generation or not group.generation:
        return 0
    return hello.generation - group.generation


def _supersede(former: Group, group: Group, hello: Hello) -> List[Effect]:
    """End the former generation; the new one takes over ranks that wait for any generation."""
    text = f"generation {hello.generation} has taken the place of generation {former.generation}"
    unsure = former.take_unsure()
    effects = former.fail(text)
    for member in unsure:
        if member.hello.world == group.world:
            member.group = group
            group.members[member.rank] = member
        else:
            effects.append(Dismiss(member, proof.text_frame(Kind.ERROR, text)))
    return effects
