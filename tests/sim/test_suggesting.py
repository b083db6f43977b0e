"""Suggestions and early-stopping checks of studies through the real store over virtual time. Clients call in
parallel, trials change during calls, and the service is killed at each commit (spec/tuning#early-stopping,
docs/adr/0017).
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.inline_store import open_inline
from tests.sim import virtual
from tests.sim.engine.clock import Clock
from tests.sim.parents import LearningAdvisor
from tests.sim.tuning_jobs import METRIC, study
from tests.unit.jobs import CREATED
from trainshed.controller.study_operations import StudyOperations
from trainshed.core.errors import Unavailable
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.study.changes import assign, complete, request_stop
from trainshed.core.study.records import Measurement, Parameters, Study, StudyUid, Trial, TrialState
from trainshed.core.study.spec import StudySpec
from trainshed.store.notices import Notices
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.studies import Studies
from trainshed.studies.port import AdvisorFailed, Proposals, TrialData

Happening = Callable[[], Coroutine[Any, Any, None]]


class Crash(SystemExit):
    """Kill the service now."""


class Advisor(LearningAdvisor):
    """An advisor that raises `faults` in its next calls, and runs the action `meanwhile` during the next
    call."""

    def __init__(self, bar: float) -> None:
        super().__init__(bar=bar)
        self.faults: list[Exception] = []
        self.meanwhile: Happening | None = None

    async def suggest(self, spec: StudySpec, trials: Sequence[TrialData], count: int, seed: int) -> Proposals:
        if self.faults:
            raise self.faults.pop(0)
        happening, self.meanwhile = self.meanwhile, None
        if happening is not None:
            await happening()
        return await super().suggest(spec, trials, count, seed)


class StudyService:
    """One study, its clients, and a sequence of services.

    `crash` contains the number of the commit at which the first service is killed, and whether it was stored.
    """

    def __init__(self, *, bar: float = 0.0, crash: tuple[int, bool] | None = None) -> None:
        self.clock = Clock(CREATED)
        self.store = open_inline()
        self.studies: Studies = self.store.studies
        self.advisor = Advisor(bar)
        self.study: Study = study()
        self.commits = 0
        self._crash = crash
        self._asked = 0
        self._run(self.studies.create(self.study))

    @property
    def uid(self) -> StudyUid:
        return self.study.uid

    # --- clients ---

    def ask(self, client: str, count: int = 1) -> str:
        """A client requests suggestions; return the name of the operation."""
        return self._begin(OperationKind.SUGGEST, client=client, count=count)

    def check(self, trial: int) -> str:
        """A client checks whether to stop a trial."""
        return self._begin(OperationKind.CHECK_STOPPING, trial=trial)

    def request(self, x: float, *measured: float) -> int:
        """A client creates a trial with its own point and measurements."""
        point: Parameters = (("x", x),)
        wanted = Trial(self.uid, 0, TrialState.REQUESTED, point, self.clock.now)
        curve = [Measurement(((METRIC, value),), n) for n, value in enumerate(measured, 1)]
        return self._run(self.studies.create_trial(wanted, curve)).number

    def changes(self, number: int, how: Callable[[Trial], Trial]) -> None:
        self._run(self.change(number, how))

    async def change(self, number: int, how: Callable[[Trial], Trial]) -> None:
        await self.store.studies.change_trial(self.uid, number, lambda trial, _: how(trial))

    def completes(self, number: int, value: float) -> None:
        final = Measurement(((METRIC, value),), 1)
        self.changes(number, lambda trial: complete(trial, final, self.clock.now))

    # --- the service ---

    def serve(self) -> "StudyService":
        """Run services one after the other until no operation is pending."""
        self.store.before_commit, self.store.after_commit = self._before, self._after
        while True:
            try:
                virtual.run(self.clock, self._life())
                break
            except Crash:
                continue
        self.store.before_commit = self.store.after_commit = None
        return self

    async def _life(self) -> None:
        notices = Notices()
        made = StudyOperations(self.studies, self.advisor, notices, lambda: self.clock.now)
        await made.start()
        while await self.store.studies.running_operations():
            seen = notices.count(self.uid)  # pyright: ignore[reportArgumentType] # one space of numbers
            await notices.wait_beyond(self.uid, seen, 3600)  # pyright: ignore[reportArgumentType] # the same
        await made.close()

    def _before(self, what: str) -> None:
        del what
        self.commits += 1
        if self._crash == (self.commits, False):
            raise Crash

    def _after(self, what: str) -> None:
        del what
        if self._crash == (self.commits, True):
            raise Crash

    # --- what is stored ---

    def operation(self, name: str) -> Operation:
        return self._run(self.store.reader.operation(name))

    def suggested_trials(self, name: str) -> tuple[int, ...]:
        """Return the trials of an operation."""
        operation = self.operation(name)
        assert operation.state is OperationState.SUCCEEDED, operation.error
        return operation.trials

    def trials(self) -> tuple[Trial, ...]:
        return self._run(self.studies.history((self.uid,)))

    def _begin(self, kind: OperationKind, **what: Any) -> str:
        self._asked += 1
        name = f"{self.study.name}/operations/{self._asked}"
        now = self.clock.now + self._asked
        running = OperationState.RUNNING
        made = Operation(name, kind, str(self.study.name), now, now, running, self.uid, **what)
        self._run(self.studies.begin_operation(made))
        return name

    def _run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return virtual.run(self.clock, what)


# --- a killed service ---


def test_study_operation_runs_once_despite_service_kills() -> None:
    """spec/invariants#durability, spec/tuning#reproducible, ADR 17: stored operations survive a restart. No
    trial is lost, duplicated or given to two clients, and the suggestions are the same as without a restart.
    """
    commits, wanted = _story(None)
    assert commits >= 6
    for number in range(1, commits + 1):
        for stored in (False, True):
            assert _story((number, stored))[1] == wanted, f"commit {number}, {stored}"


def _story(crash: tuple[int, bool] | None) -> tuple[int, object]:
    """Send requests of clients. Return the number of commits and the result."""
    study_service = StudyService(bar=0.5, crash=crash)
    study_service.request(0.5, 0.9, 0.1)
    names = [
        study_service.ask("ada", 2),
        study_service.ask("bob", 3),
        study_service.ask("ada", 3),
        study_service.check(1),
        study_service.ask("eve", 3),
        study_service.ask("bob", 3),
    ]
    study_service.serve()
    done = [study_service.operation(name) for name in names]
    assert all(operation.state is OperationState.SUCCEEDED for operation in done)
    trials = study_service.trials()
    assert [trial.number for trial in trials] == list(range(1, len(trials) + 1))
    assert len({trial.parameters for trial in trials}) == len(trials)
    for operation in (done_one for done_one in done if done_one.kind is OperationKind.SUGGEST):
        assert all(trials[number - 1].client == operation.client for number in operation.trials)
    answers = [(operation.trials, operation.should_stop) for operation in done]
    return study_service.commits, (answers, [(trial.parameters, trial.client) for trial in trials])


# --- concurrent changes of trials ---


@pytest.mark.parametrize("how", ["taken", "deleted"])
@pytest.mark.parametrize("when", ["before it is read", "while the rest is computed"])
def test_concurrently_changed_trial_is_not_suggested(how: str, when: str) -> None:
    """ADR 17: the trial's generation guards each change, and the operation retries."""
    study_service = StudyService()
    study_service.request(0.5)
    store = study_service.store.studies

    async def interfere() -> None:
        if how == "deleted":
            await store.delete_trial(study_service.uid, 1)
        else:
            await study_service.change(1, lambda trial: assign(trial, "bob", study_service.clock.now))

    if when == "before it is read":
        study_service.studies = InterferingStore(study_service.studies, interfere)  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue] # the rest is the store's own
    else:
        study_service.advisor.meanwhile = interfere
    name = study_service.ask("ada", 2)
    study_service.serve()
    assert study_service.suggested_trials(name) == (2, 3)
    assert [t.client for t in study_service.trials()] == (["bob"] if how == "taken" else []) + ["ada"] * 2
    assert study_service.clock.now < CREATED + 10**9, "the operation does not wait for the other trial"


class InterferingStore:
    """A store that runs an action right after the first history was read."""

    def __init__(self, studies: Studies, happening: Happening) -> None:
        self._studies = studies
        self._happening: Happening | None = happening

    def __getattr__(self, name: str) -> Any:
        return getattr(self._studies, name)

    async def history(self, studies: Sequence[StudyUid]) -> tuple[Trial, ...]:
        trials = await self._studies.history(studies)
        happening, self._happening = self._happening, None
        if happening is not None:
            await happening()
        return trials


def test_operation_of_a_concurrently_deleted_study_fails() -> None:
    study_service = StudyService()

    async def delete() -> None:
        await study_service.store.studies.delete_study(study_service.study.name, CREATED)

    study_service.advisor.meanwhile = delete
    name = study_service.ask("ada")
    failed = study_service.serve().operation(name)
    assert failed.state is OperationState.FAILED
    assert failed.error is not None and failed.error.code == 5
    assert study_service.trials() == ()


def test_concurrently_cancelled_operation_is_not_retried() -> None:
    """The cancelled operation returns no trial."""
    study_service = StudyService()
    name = study_service.ask("ada")

    async def cancel() -> None:
        stored = await study_service.store.reader.operation(name)
        cancelled = replace(stored, state=OperationState.CANCELLED)
        await study_service.store.studies.finish_operation(cancelled)
        study_service.advisor.faults.append(AssertionError("it is computed for nobody"))

    study_service.advisor.meanwhile = cancel
    assert study_service.serve().operation(name).state is OperationState.CANCELLED
    assert study_service.trials() == ()


# --- failing advisors and stores ---


def test_failing_suggestion_is_retried_and_finally_reports_its_error() -> None:
    study_service = StudyService()
    study_service.advisor.faults = [AdvisorFailed("it died")] * 6
    name, next_one = study_service.ask("ada"), study_service.ask("bob")
    failed = study_service.serve().operation(name)
    assert failed.error is not None and failed.error.code == 13
    assert "it died" in failed.error.message
    assert study_service.suggested_trials(next_one) == (1,), "the operation fails once and is retried"


def test_suggestion_is_retried_after_a_temporary_read_failure_of_the_store() -> None:
    """The operation must not hang until the next restart."""
    study_service = StudyService()
    name = study_service.ask("ada")
    faults = [Unavailable("the disk is full"), Unavailable("the disk is full")]

    class Failing(InterferingStore):
        async def running_operations(self, study: StudyUid | None = None) -> tuple[Operation, ...]:
            if study is not None and faults:
                raise faults.pop()
            return await self._studies.running_operations(study)

    async def nothing() -> None: ...

    study_service.studies = Failing(study_service.studies, nothing)  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue] # as above
    assert study_service.serve().suggested_trials(name) == (1,)


# --- early stopping ---


def test_early_stopping_check_uses_the_rule_of_the_study() -> None:
    """spec/tuning#early-stopping, facts/tuning#vizier: only running trials with enough measurements are
    stopped."""
    study_service = StudyService(bar=0.5)
    good, bad, short, stopping = (
        study_service.request(0.1, 0.6, 0.7),
        study_service.request(0.2, 0.6, 0.1),
        study_service.request(0.3),
        study_service.request(0.4),
    )
    study_service.changes(stopping, request_stop)
    checks = [study_service.check(number) for number in (good, bad, short, stopping)]
    study_service.serve()
    assert [study_service.operation(name).should_stop for name in checks] == [False, True, False, True]
    states = [trial.state for trial in study_service.trials()]
    assert states == [TrialState.REQUESTED, TrialState.STOPPING] * 2
