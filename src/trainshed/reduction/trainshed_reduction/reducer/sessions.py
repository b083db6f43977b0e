"""All groups at this reducer, and which generation of each counts. Pure: no sockets, no clock.

Whoever calls holds the connections: it tells what came on them and when, and carries out the effects. An
older generation is refused, a newer one ends what is left of the older.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import List, Tuple

from trainshed_reduction import proof
from trainshed_reduction.reducer.counters import Counters
from trainshed_reduction.reducer.groups import Dismiss, Effect, Group, Member
from trainshed_reduction.wire import Header, Hello, Kind, Malformed

_REMEMBERED = 1024
"""Groups without connections whose generation is kept in mind."""


class Refusal(Exception):
    """This worker cannot take part; the text is for it."""


class Sessions:
    """The groups that workers have come for, by name and generation."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._groups: OrderedDict[bytes, Group] = OrderedDict()

    @property
    def is_waiting(self) -> bool:
        """Whether `status` may have something to say."""
        return any(group.is_waiting for group in self._groups.values())

    @property
    def chunks_in_flight(self) -> int:
        return sum(group.chunks_in_flight for group in self._groups.values())

    def admit(self, hello: Hello, now: float) -> Tuple[Member, List[Effect]]:
        """A worker that has proved itself; ACCEPT goes before the effects. Raises Refusal."""
        group = self._groups.get(hello.group)
        effects: List[Effect] = []
        if group is None:
            group = self._begin(hello, now)
        elif _age(hello, group) < 0:
            raise Refusal(_older(hello, group))
        elif _age(hello, group) > 0:
            former = group
            group = self._begin(hello, now)
            effects = _supersede(former, group, hello)
        elif group.failure and hello.generation:
            raise Refusal(group.failure)
        elif group.is_empty and group.world != hello.world:
            group = self._begin(
                hello._replace(generation=hello.generation or group.generation), now
            )
        else:
            effects = _agree(hello, group)
        self._groups.move_to_end(hello.group)
        member = Member(hello, group)
        return member, effects + group.gather(member, now)

    def _begin(self, hello: Hello, now: float) -> Group:
        empty = [name for name, group in self._groups.items() if group.is_empty]
        if len(empty) >= _REMEMBERED:
            del self._groups[empty[0]]
        group = Group(hello, self._counters, now)
        self._groups[hello.group] = group
        return group

    def frame(self, member: Member, header: Header, payload: bytes, now: float) -> List[Effect]:
        """What came on a connection and is no chunk. Raises Malformed: it is to be closed, and `lose`
        called."""
        if header.kind is Kind.BYE:
            return member.group.leave(member, now)
        if header.kind is Kind.ERROR:
            text = "".join(
                each if each.isprintable() else " " for each in payload.decode(errors="replace")
            )
            return member.group.fail("rank {} cannot go on: {}".format(member.rank, text))
        raise Malformed("{} is no frame that a worker sends here".format(header.kind.name))

    def odd(self, member: Member, header: Header) -> List[Effect]:
        """A header that was not taken where chunks are added up. Raises Malformed."""
        if header.kind not in (Kind.DATA, Kind.FINAL):
            raise Malformed("{} is no frame that a worker sends here".format(header.kind.name))
        return member.group.odd(member, header)

    def lose(self, member: Member, now: float) -> List[Effect]:
        """Its connection broke, or is to be closed; nothing if it has left or was dismissed before."""
        return member.group.lose(member, now)

    def status(self, now: float) -> List[Effect]:
        """To be called once a second while something waits."""
        effects: List[Effect] = []
        for group in self._groups.values():
            if group.is_waiting:
                effects += group.status(now)
        return effects


def _age(hello: Hello, group: Group) -> int:
    """Below 0: the worker is of an older generation than the group, above: of a newer one."""
    if not hello.generation or not group.generation:
        return 0
    return hello.generation - group.generation


def _older(hello: Hello, group: Group) -> str:
    return (
        "generation {} is older than {}: these workers were replaced, or the other ranks have given up a "
        "reducer and gone on".format(hello.generation, group.generation)
    )


def _supersede(former: Group, group: Group, hello: Hello) -> List[Effect]:
    """Ends the former generation; who waits for a new one already is taken over."""
    text = "generation {} has taken the place of generation {}".format(
        hello.generation, former.generation
    )
    unsure = former.take_unsure()
    effects = former.fail(text)
    for member in unsure:
        if member.hello.world == group.world:
            member.group = group
            group.members[member.rank] = member
        else:
            effects.append(Dismiss(member, proof.text_frame(Kind.ERROR, text)))
    return effects


def _agree(hello: Hello, group: Group) -> List[Effect]:
    """Of the same generation, as far as they know it: they must also be of the same size. Raises Refusal."""
    effects: List[Effect] = []
    if hello.world != group.world:
        text = "rank {} says that the group has {} workers, the others say {}".format(
            hello.rank, hello.world, group.world
        )
        if group.generation or not hello.generation:
            raise Refusal(text)
        # Only the one who knows the generation is surely of it.
        effects = group.fail(text)
        group.failure = ""
        group.world = hello.world
    group.generation = group.generation or hello.generation
    return effects
