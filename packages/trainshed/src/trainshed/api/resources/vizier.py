"""VizierService of Vertex and of `ml` v1: one table of operations, and a dialect for each API
(facts/tuning#vizier, facts/resources#trials).

An operation reads a request, lets `resources.studies` carry it out, and shows the resulting record.
Transports find it by its full method name like any other handler.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from google.protobuf.message import Message
from msgspec import Struct

from trainshed.api.calls.call import Call, Handlers
from trainshed.api.calls.checks import Checks
from trainshed.api.calls.paging import decode_number, encode_token, page_size
from trainshed.api.calls.parents import LocationName
from trainshed.api.calls.services import Services
from trainshed.api.resources import studies
from trainshed.api.resources.studies import is_of_ml, read_study_name, read_trial_name
from trainshed.core.errors import InvalidRequest, NotFound, Violation
from trainshed.core.names import StudyName
from trainshed.core.specs.study import ParsedStudy
from trainshed.core.study.reading import Claim, GivenMeasurement, GivenParameter, GivenTrial
from trainshed.core.study.records import Measurement, Study, StudyUid, Trial
from trainshed.store.records import Operation as OperationRecord
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_FEW: Final = 20
"""Most trials whose views are made on the event loop; those of more are made in a thread, so that other
requests go on meanwhile."""
_CHUNK: Final = 1_000
_SUBJECT: Final = ("trial_name", "name", "parent")
"""Fields in which a request may name its subject."""


class Dialect(Struct, frozen=True):
    """What one of the two APIs does or names in its own way."""

    #: Full name of the package whose VizierService it is.
    package: str
    #: Whether its studies are those whose ids are not all digits.
    of_ml: bool
    #: Reads a location by its name. Raises InvalidRequest, NotFound.
    location: Callable[[str], LocationName]
    #: Returns the study that a request is to create. Raises InvalidRequest with all faults.
    parse_study: Callable[[Call, Any], ParsedStudy]
    #: Returns the id of a new study, from its uid and the request.
    study_id: Callable[[StudyUid, Any], str]
    study: Callable[[Study], Message]
    trial: Callable[[StudyName, Trial, Sequence[Measurement]], Message]
    operation: Callable[[Services, OperationRecord], Awaitable[Message]]
    #: Returns the parameters of a Trial message that stands at a path in the request.
    given_parameters: Callable[[Any, str], Iterable[GivenParameter]]
    #: Reads a Measurement message that stands at a path in the request.
    given_measurement: Callable[[Any, str], GivenMeasurement]
    #: Returns what a client's own trial claims, from the message and the name of its state: how it ended, its
    #: client, and why it is infeasible.
    claim: Callable[[Any, str], tuple[Claim, str, str]]
    #: Return the names of operations up to the number that ends them: of suggestions, and of stopping checks
    #: for a trial.
    suggesting: Callable[[Study], str]
    checking: Callable[[Study, int], str]
    #: Raises NotServed or InvalidRequest for a request for suggestions that cannot be served.
    check_suggestion: Callable[[Any], None]
    #: Field of the optimal trials in their list.
    optimal: str
    #: Operations that its API does not have.
    without: frozenset[str] = frozenset()
    #: Most studies, and most trials, of a page; 0: lists have no pages.
    studies_page: int = 0
    trials_page: int = 0

    def message(self, name: str, **fields: Any) -> Message:
        """Return a new message of the package."""
        return pool.message_class(f"{self.package}.{name}")(**fields)


async def create_study(dialect: Dialect, call: Call, request: Any) -> Message:
    """Create a study. In Vertex an existing display name is a conflict, in `ml` v1 an existing id, because
    clients find a study again by these (spec/clients#conflicts)."""
    parsed = dialect.parse_study(call, request)
    parent = dialect.location(request.parent)
    uid = StudyUid(call.services.new_uid())
    record = Study(
        uid=uid,
        name=StudyName(parent.project_id, parent.location, dialect.study_id(uid, request)),
        display_name=parsed.display_name,
        spec=parsed.spec,
        public_json=json.dumps(
            wire_json.to_public(request.study), ensure_ascii=False, separators=(",", ":")
        ),
        created=call.services.now(),
    )
    await call.services.studies.create_study(record)
    return dialect.study(record)


async def get_study(dialect: Dialect, call: Call, request: Any) -> Message:
    return dialect.study(await _study(dialect, call, request))


async def list_studies(dialect: Dialect, call: Call, request: Any) -> Message:
    parent = dialect.location(request.parent)
    if not dialect.studies_page:
        every = await studies.ml_studies(call.services, parent)
        return dialect.message("ListStudiesResponse", studies=map(dialect.study, every))
    most = dialect.studies_page
    size = page_size(request.page_size, default=most, maximum=most)
    page, token = await studies.list_studies(
        call.services, parent, token=request.page_token, size=size
    )
    return dialect.message(
        "ListStudiesResponse", studies=map(dialect.study, page), next_page_token=token
    )


async def look_up_study(dialect: Dialect, call: Call, request: Any) -> Message:
    parent = dialect.location(request.parent)
    if not request.display_name:
        raise InvalidRequest((Violation("display_name", "The display name must be set."),))
    study = await call.services.studies.lookup_study(
        parent.project_id, parent.location, request.display_name
    )
    if is_of_ml(study.name) is not dialect.of_ml:
        raise NotFound(f"{parent} has no study called {request.display_name!r} of this API.")
    return dialect.study(study)


async def delete_study(dialect: Dialect, call: Call, request: Any) -> Message:
    name = read_study_name(request.name, of_ml=dialect.of_ml)
    await studies.delete_study(call.services, name)
    return pool.message_class("google.protobuf.Empty")()


async def create_trial(dialect: Dialect, call: Call, request: Any) -> Message:
    """Create the client's own trial: REQUESTED, or over if it has a final measurement or its state says
    so."""
    study = await _study(dialect, call, request)
    made = await studies.create_trial(call.services, study, _given_trial(dialect, request.trial))
    return await _view(dialect, call, study, made)


async def get_trial(dialect: Dialect, call: Call, request: Any) -> Message:
    study, number = await _trial(dialect, call, request)
    return await _view(dialect, call, study, await studies.read_trial(call.services, study, number))


async def list_trials(dialect: Dialect, call: Call, request: Any) -> Message:
    """List trials, ascending by number."""
    study = await _study(dialect, call, request)
    if not dialect.trials_page:
        views: list[Message] = []
        after = 0
        while rows := await call.services.studies.trials(study.uid, after, _CHUNK):
            views += await _views(dialect, call, study, rows)
            after = rows[-1].number
        return dialect.message("ListTrialsResponse", trials=views)
    most = dialect.trials_page
    size = page_size(request.page_size, default=most, maximum=most)
    question = (str(study.name), "trials")
    after = decode_number(request.page_token, *question)
    rows = await call.services.studies.trials(study.uid, after, size + 1)
    page = rows[:size]
    more = len(rows) > size
    return dialect.message(
        "ListTrialsResponse",
        trials=await _views(dialect, call, study, page),
        next_page_token=encode_token(str(page[-1].number), *question) if more else "",
    )


async def delete_trial(dialect: Dialect, call: Call, request: Any) -> Message:
    study, number = await _trial(dialect, call, request)
    await studies.delete_trial(call.services, study, number)
    return pool.message_class("google.protobuf.Empty")()


async def suggest_trials(dialect: Dialect, call: Call, request: Any) -> Message:
    study = await _study(dialect, call, request)
    dialect.check_suggestion(request)
    record = await studies.suggest(
        call.services,
        study,
        parent=dialect.suggesting(study),
        client=request.client_id,
        count=request.suggestion_count,
    )
    return await dialect.operation(call.services, record)


async def add_measurement(dialect: Dialect, call: Call, request: Any) -> Message:
    study, number = await _trial(dialect, call, request)
    reported = dialect.given_measurement(request.measurement, "measurement")
    changed = await studies.add_measurement(call.services, study, number, reported)
    return await _view(dialect, call, study, changed)


async def complete_trial(dialect: Dialect, call: Call, request: Any) -> Message:
    study, number = await _trial(dialect, call, request)
    reported = None
    if request.HasField("final_measurement"):
        reported = dialect.given_measurement(request.final_measurement, "final_measurement")
    changed = await studies.complete(
        call.services,
        study,
        number,
        reported,
        is_infeasible=request.trial_infeasible,
        reason=request.infeasible_reason,
    )
    return await _view(dialect, call, study, changed)


async def stop_trial(dialect: Dialect, call: Call, request: Any) -> Message:
    study, number = await _trial(dialect, call, request)
    return await _view(dialect, call, study, await studies.stop(call.services, study, number))


async def check_early_stopping(dialect: Dialect, call: Call, request: Any) -> Message:
    study, number = await _trial(dialect, call, request)
    record = await studies.check_stopping(
        call.services, study, number, parent=dialect.checking(study, number)
    )
    return await dialect.operation(call.services, record)


async def list_optimal_trials(dialect: Dialect, call: Call, request: Any) -> Message:
    study = await _study(dialect, call, request)
    best = await studies.optimal(call.services, study)
    views = await _views(dialect, call, study, best)
    return dialect.message("ListOptimalTrialsResponse", **{dialect.optimal: views})


OPERATIONS: Final[Mapping[str, Callable[[Dialect, Call, Any], Awaitable[Message]]]] = {
    "CreateStudy": create_study,
    "GetStudy": get_study,
    "ListStudies": list_studies,
    "LookupStudy": look_up_study,
    "DeleteStudy": delete_study,
    "CreateTrial": create_trial,
    "GetTrial": get_trial,
    "ListTrials": list_trials,
    "DeleteTrial": delete_trial,
    "SuggestTrials": suggest_trials,
    "AddTrialMeasurement": add_measurement,
    "CompleteTrial": complete_trial,
    "StopTrial": stop_trial,
    "CheckTrialEarlyStoppingState": check_early_stopping,
    "ListOptimalTrials": list_optimal_trials,
}
"""Handlers by method name, for any dialect."""


def handlers(dialect: Dialect) -> Handlers:
    """Return the handlers of the API's operations, by full method name."""
    service = f"{dialect.package}.VizierService"
    return {
        f"{service}.{method}": partial(operation, dialect)
        for method, operation in OPERATIONS.items()
        if method not in dialect.without
    }


def checks(dialect: Dialect) -> Checks:
    """Return checks by full method name, for requests of which only a part can be read."""
    return {f"{dialect.package}.VizierService.CreateStudy": dialect.parse_study}


def _subject(request: Any) -> tuple[str, str]:
    """Return what a request is about, and the field that names it."""
    fields = request.DESCRIPTOR.fields_by_name
    field = next(name for name in _SUBJECT if name in fields)
    return getattr(request, field), field


async def _study(dialect: Dialect, call: Call, request: Any) -> Study:
    text, field = _subject(request)
    name = read_study_name(text, of_ml=dialect.of_ml, field=field)
    return await call.services.studies.study(name)


async def _trial(dialect: Dialect, call: Call, request: Any) -> tuple[Study, int]:
    text, field = _subject(request)
    study, number = read_trial_name(text, of_ml=dialect.of_ml, field=field)
    return await call.services.studies.study(study), number


async def _view(dialect: Dialect, call: Call, study: Study, record: Trial) -> Message:
    return (await _views(dialect, call, study, (record,)))[0]


async def _views(
    dialect: Dialect, call: Call, study: Study, records: tuple[Trial, ...]
) -> list[Message]:
    shown = await studies.with_measurements(call.services, study.uid, records)

    def views() -> list[Message]:
        return [dialect.trial(study.name, record, measured) for record, measured in shown]

    # Takes half a second for a page of trials with a hundred measurements each.
    return await asyncio.to_thread(views) if len(shown) > _FEW else views()


def _given_trial(dialect: Dialect, message: Any) -> GivenTrial:
    states = message.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_number
    state = states[message.state].name if message.state in states else ""
    final = None
    if message.HasField("final_measurement"):
        final = dialect.given_measurement(message.final_measurement, "trial.final_measurement")
    return GivenTrial(
        "trial",
        tuple(dialect.given_parameters(message, "trial")),
        tuple(
            dialect.given_measurement(measurement, f"trial.measurements[{index}]")
            for index, measurement in enumerate(message.measurements)
        ),
        final,
        *dialect.claim(message, state),
    )
