"""Finds the works that wait for the end of other works (spec/lifecycle#dependencies).

The stored works determine all results. The index in memory only avoids searches, and is built again at each
start from the unfinished works.
"""

from collections.abc import Callable

from trainshed.core.lifecycle.events import DependencyEnded, Event
from trainshed.core.lifecycle.states import JobState
from trainshed.core.names import JobUid
from trainshed.core.works import Work
from trainshed.store.sqlite.reader import Reader


class Dependents:
    """The works that wait for each unfinished work. One per controller.

    `report`: receives an event of a work.
    """

    def __init__(self, reader: Reader, report: Callable[[JobUid, Event], None]) -> None:
        self._reader = reader
        self._report = report
        self._dependents: dict[JobUid, set[JobUid]] = {}

    def add(self, work: Work) -> None:
        """Add an unfinished work, or a work that is about to be stored."""
        for dependency in work.dependencies:
            self._dependents.setdefault(dependency.uid, set()).add(work.uid)

    def remove(self, work: Work) -> None:
        """Remove a work that has finished or was not stored."""
        for dependency in work.dependencies:
            self._discard(dependency.uid, work.uid)

    def report_end(self, uid: JobUid, state: JobState | None) -> None:
        """Report the end of a work to the works that wait for it. The event contains the final state, because
        a client may delete the finished work before the other works are processed."""
        for dependent in sorted(self._dependents.pop(uid, ())):
            self._report(dependent, DependencyEnded(uid, state))

    async def report_earlier_ends(self) -> None:
        """Report all ends that an earlier service may not have processed. Must be called before clients can
        delete finished works."""
        states = await self._reader.states(tuple(self._dependents))
        for uid in tuple(self._dependents):
            state = states.get(uid)
            if state is None or state.is_final:
                self.report_end(uid, state)

    async def ends_before(self, work: Work) -> list[Event]:
        """Return the ends of works for which a held work no longer has to wait, for example because they
        finished while the held work was being stored."""
        if not work.is_held:
            return []
        uids = [dependency.uid for dependency in work.dependencies]
        states = await self._reader.states(uids)
        ends = [DependencyEnded(uid, states.get(uid)) for uid in uids]
        ends = [end for end in ends if end.state is None or end.state.is_final]
        for end in ends:
            self._discard(end.uid, work.uid)
        return [*ends]

    def _discard(self, uid: JobUid, dependent: JobUid) -> None:
        dependents = self._dependents.get(uid, set())
        dependents.discard(dependent)
        if not dependents:
            self._dependents.pop(uid, None)
