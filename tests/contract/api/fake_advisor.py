"""A fake advisor for the API's tests. It finishes the operations of studies through the store, or
leaves them pending."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import force_setattr, replace

from tests.contract.api.api_service import ApiService
from tests.contract.api.grpc_service import GrpcApiService
from trainshed.core.lifecycle.states import OperationState
from trainshed.core.names import JobUid
from trainshed.core.study.records import Parameters, StudyUid, Trial, TrialState
from trainshed.store.records import Operation, OperationKind
from trainshed.store.sqlite.database import Store
from trainshed.store.sqlite.studies import Studies

SPEC: dict[str, Any] = {
    "metrics": [{"metricId": "loss", "goal": "MINIMIZE"}],
    "parameters": [
        {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.001, "maxValue": 1}},
        {"parameterId": "layers", "integerValueSpec": {"minValue": "1", "maxValue": "9"}},
        {"parameterId": "model", "categoricalValueSpec": {"values": ["linear", "deep"]}},
    ],
}

OWN: dict[str, Any] = {
    "parameters": [
        {"parameterId": "layers", "value": 2},
        {"parameterId": "model", "value": "deep"},
        {"parameterId": "rate", "value": 0.5},
    ]
}
"""A trial that the client itself creates."""


class FakeAdvisor:
    """Proposes one point after another. While `asleep`, every operation stays pending. `stops`: the result of
    each early stopping check."""

    def __init__(self, service: ApiService) -> None:
        self.asleep = False
        self.stops = False
        self._house = service
        self._tasks: set[asyncio.Task[None]] = set()
        self._points = _points()

    def wake(self, study: StudyUid) -> None:
        if not self.asleep:
            task = asyncio.get_running_loop().create_task(self.work_off(study))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def work_off(self, study: StudyUid) -> None:
        """Finish all pending operations of the study."""
        for operation in await self._studies.running_operations(study):
            done = replace(operation, state=OperationState.SUCCEEDED, updated=self._house.clock + 1_000)
            if operation.kind is OperationKind.SUGGEST:
                await self._suggest(done)
            else:
                await self._studies.finish_operation(replace(done, should_stop=self.stops))
        self._house.notices.publish(JobUid(study))

    @property
    def _studies(self) -> Studies:
        store: Store = self._house.store
        return store.studies

    async def _suggest(self, done: Operation) -> None:
        own: list[int] = []
        requested: list[int] = []
        for trial in await self._studies.history((done.study,)):
            if trial.state is TrialState.ACTIVE and trial.client == done.client:
                own.append(trial.number)
            elif trial.state is TrialState.REQUESTED:
                requested.append(trial.number)
        own = own[: done.count]
        requested = requested[: done.count - len(own)]
        suggested = [
            Trial(
                done.study,
                0,
                TrialState.ACTIVE,
                next(self._points),
                created=done.updated,
                started=done.updated,
                client=done.client,
            )
            for _ in range(done.count - len(own) - len(requested))
        ]
        await self._studies.finish_operation(
            replace(done, trials=tuple(own)), assigned=requested, suggested=suggested
        )


def add_advisor(service: ApiService, **settings: Any) -> FakeAdvisor:
    """Add a fake advisor to the service, and change settings of the API."""
    advisor = FakeAdvisor(service)
    # Change the settings in place: the running application already holds these services.
    changed = replace(service.services.settings, **settings)
    force_setattr(service.services, "suggest", advisor.wake)
    force_setattr(service.services, "settings", changed)
    return advisor


@asynccontextmanager
async def service_over(transport: str, directory: Path) -> AsyncGenerator[ApiService]:
    """Return a new service whose `call` uses REST or gRPC."""
    if transport == "gRPC":
        async with GrpcApiService(directory).open() as opened:
            yield opened
    else:
        built = ApiService(directory)
        yield built
        built.close()


def _points() -> Iterator[Parameters]:
    for number in range(1, 1_000):
        yield (
            ("rate", number / 1_000),
            ("layers", 1 + number % 9),
            ("model", ("linear", "deep")[number % 2]),
        )
