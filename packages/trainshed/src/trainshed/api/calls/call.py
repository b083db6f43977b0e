"""One call of an API method, as every transport makes it: read the request, find out whether the caller may,
answer. Calls of people that change something are recorded.

A request names its project in its own text fields (`name`, `parent`, ...), as `projects/P/...`, or in the
name of the resource that it carries. Only Logging also lists bare projects, and entries that name their logs.
"""

import contextlib
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from functools import lru_cache
from typing import Any, Final, TypeVar, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from msgspec import Struct
from msgspec.structs import replace

from trainshed.access.account_tokens import what_became
from trainshed.access.permissions import authorize, is_recorded
from trainshed.access.policy import home_of
from trainshed.access.principals import Bearer, Principal
from trainshed.api.calls.checks import completed
from trainshed.api.calls.errors import not_served
from trainshed.api.calls.http import LARGE, read_aside
from trainshed.api.calls.services import Services
from trainshed.api.calls.streams import StreamHandlers, guarded
from trainshed.api.calls.versions import Version
from trainshed.core import secrets
from trainshed.core.errors import (
    FailedPrecondition,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Violation,
)
from trainshed.core.lifecycle.records import ActingJob, Actor, person_of
from trainshed.core.names import JobUid, ids_by_number, normalize_email
from trainshed.store.audit import AuditRecord, RecordedCall, recording, under_way
from trainshed.store.sqlite.reader import Reader
from trainshed.wire import json as wire_json
from trainshed.wire import routes
from trainshed.wire.status import StatusCode, WireError

T = TypeVar("T")
_CREATING: Final = frozenset(
    {
        "google.cloud.aiplatform.v1.JobService.CreateCustomJob",
        "google.cloud.aiplatform.v1.JobService.CreateHyperparameterTuningJob",
        "google.cloud.aiplatform.v1.PipelineService.CreateTrainingPipeline",
        "google.cloud.ml.v1.JobService.CreateJob",
    }
)
_ACT_AS: Final = "iam.serviceAccounts.actAs"
_ACCOUNT: Final = frozenset({"serviceAccount", "service_account"})
"""The field with the service account, also as clients spell it in JSON of their own."""
_NAMES: Final = frozenset(
    {
        "artifact",
        "context",
        "execution",
        "log_name",
        "name",
        "parent",
        "parent_model",
        "resource",
        "source_model",
        "tensorboard",
        "tensorboard_experiment",
        "tensorboard_run",
        "tensorboard_time_series",
        "trial_name",
    }
)
_LISTS: Final = frozenset(
    {"artifacts", "child_contexts", "executions", "resource_names", "time_series"}
)
"""Fields with several names. A field of one name with such a name counts as one of `_NAMES`."""
_BARE: Final = "project_ids"
_ENTRIES: Final = "entries"
_PARTS: Final = frozenset({_ENTRIES, "events", "requests", "write_run_data_requests"})
_NAMED: Final = _NAMES | _LISTS
_RENAMED: Final = _NAMED | {"experiment", "experiment_run", "model"}
"""Fields in which project numbers are replaced; some are within a resource, as in a job's specification."""
_RENAMED_LISTS: Final = _LISTS | {_BARE}
_FILTER: Final = "filter"
_FREE: Final = frozenset({"metadata", "training_task_inputs"})
"""Fields with content of the caller's own, which is left as it is whatever its fields are called."""


class Call(Struct, frozen=True):
    """One call of an API method."""

    principal: Principal
    services: Services
    #: Full name, such as `google.cloud.aiplatform.v1.JobService.CreateCustomJob`.
    method: str
    #: The request in public JSON, which those that make jobs are looked at in; None = it is not made yet.
    public: dict[str, Any] | None = None


def sent(call: Call, request: Any, name: str) -> dict[str, Any]:
    """Return what a request carries in its field `name`, in public JSON."""
    if call.public is None:
        return wire_json.to_public(getattr(request, name))
    return call.public.setdefault(camel(name), {})


# The request's fields are those of the method's request message, which only the descriptors know.
Handler = Callable[[Call, Any], Awaitable[Message]]
"""Takes the request message and returns the response message; raises the errors of `api.calls.errors`."""

Handlers = Mapping[str, Handler]
"""Handlers by full method name."""

Check = Callable[[Call, Any], object]
"""Validates a request message without side effects. Raises InvalidRequest, or another refusal."""

Checks = Mapping[str, Check]
"""Checks by full method name."""


class Registry(Struct, frozen=True):
    """The methods that a service serves."""

    #: By their full names.
    handlers: Handlers
    #: Of those of them whose requests can be read in part.
    checks: Checks
    #: Methods that return a stream, by their full names.
    streams: StreamHandlers = {}

    @property
    def methods(self) -> Set[str]:
        """The full names of all methods."""
        return self.handlers.keys() | self.streams.keys()

    async def opened(
        self, call: Call, size: int, read: Callable[[], Message]
    ) -> AsyncGenerator[Message]:
        """Return the stream of responses to a first request of `size` bytes, which `read` parses. Raises
        NotServed, PermissionDenied, WireError, and what the handler raises."""
        handler = self.streams.get(call.method)
        if handler is None:
            raise not_served(_known(call.method), self.methods)
        request = await read_aside(size, read)
        name_by_id(request, known_to(call.principal, call.services))
        responses = await _performed(handler, call, request)
        return guarded(responses, call.services, call.principal)

    async def answered(
        self, call: Call, version: Version, size: int, read: Callable[[], Message]
    ) -> Message:
        """Return the answer to a request of `size` bytes, which `read` makes a message of. A large one is
        read and checked aside, as far as that needs no store. Raises NotServed, PermissionDenied, WireError,
        and what the handler raises."""
        handler, check = self.handlers.get(call.method), self.checks.get(call.method)
        if handler is None:
            raise not_served(_known(call.method), self.methods)

        def named(request: Message) -> Message:
            name_by_id(request, known_to(call.principal, call.services))
            return request

        def checked(request: Message) -> Message:
            if check is not None:
                # Who may not is refused, and recorded, by `_performed`, and told nothing else.
                with contextlib.suppress(PermissionDenied):
                    authorize(call.principal, call.method, tuple(projects_of(request)))
                    check(call, request)
            return request

        def read_whole() -> Message:
            try:
                request = named(read())
            except WireError as refused:
                if check is None:
                    raise
                raise completed(refused, lambda broken: checked(named(broken))) from None
            return checked(request) if size >= LARGE else request

        request = await read_aside(size, read_whole)
        answer = _masked(await _performed(handler, call, request), request)
        service = call.method.rpartition(".")[0]
        call.services.beta.dress(answer, version, made=service not in routes.MIXED_IN)
        return answer


def _known(method: str) -> routes.KnownMethod:
    return routes.by_name(method) or routes.KnownMethod(method, "")


async def _performed(handler: Callable[[Call, Any], Awaitable[T]], call: Call, request: Any) -> T:
    """Return what a handler answers to a call, if its principal may make it in the projects that the request
    names. Raises PermissionDenied, and what the handler raises."""
    principal, services, method = call.principal, call.services, call.method
    projects = tuple(projects_of(request))

    async def answer() -> T:
        authorize(principal, method, projects)
        allowed = call
        if method in _CREATING:
            allowed = replace(call, public=wire_json.to_public(request))
            texts = list(texts_of(allowed.public))
            refuse_more(principal, services, texts)
            record_secrets(texts)
        if services.sent is not None:
            services.sent(method, request)
        return await handler(allowed, request)

    project, resource = next(iter(projects), ""), _subject(request)
    return await audited(answer, services, principal, method, project=project, resource=resource)


def _masked(answer: Message, request: Any) -> Message:
    """Return a resource, or a list of some, with those fields alone that the request's `read_mask` names.
    Raises InvalidRequest."""
    mask = getattr(request, "read_mask", None)
    if mask is None or not mask.paths or "*" in mask.paths:
        return answer
    is_list = request.DESCRIPTOR.name.startswith("List")
    lists = [rows for part, rows in answer.ListFields() if part.message_type] if is_list else []
    for resources in lists if is_list else [[answer]]:
        for resource in resources:
            if not mask.IsValidForDescriptor(resource.DESCRIPTOR):
                wrong = (
                    f"{','.join(mask.paths)!r} is not made of fields of {resource.DESCRIPTOR.name}."
                )
                raise InvalidRequest((Violation("read_mask", f"{wrong} Write name,displayName."),))
            kept = type(resource)()
            mask.MergeMessage(resource, kept)
            resource.CopyFrom(kept)
    return answer


def name_by_id(request: Message, ids: Iterable[str]) -> None:
    """Replace project numbers in a request's names by ids, so that both name the same project. Programs find
    the number in CLOUD_ML_PROJECT_ID. `ids`: the projects whose numbers are known here; "" is ignored."""
    numbers = _by_number(tuple(ids))
    # Most requests name no project by its number. Searching the serialized request for the digits is cheaper
    # than walking its fields.
    content = request.SerializePartialToString()
    if any(_digits(name) in content for name in numbers):
        _rename(request, numbers)


def id_of(number: str, principal: Principal, services: Services) -> str:
    """Return the id of the project with this number; the number, where somebody may not know that one."""
    return ids_by_number(known_to(principal, services)).get(number, number)


def known_to(principal: Principal, services: Services) -> tuple[str, ...]:
    """Return the projects that somebody may name by their numbers."""
    book = services.access.book
    others = (*book.projects, *book.policy.projects()) if principal.rights.everywhere else ()
    return (*principal.rights.projects, services.settings.project, *others)


@lru_cache(1024)
def _digits(name: str) -> bytes:
    """Return the digits of `projects/NUMBER/`."""
    return name.removeprefix("projects/").removesuffix("/").encode()


@lru_cache(16)
def _by_number(ids: tuple[str, ...]) -> Mapping[str, str]:
    """Return the beginnings of names: with the number as key, with the id as value."""
    return {
        f"projects/{number}/": f"projects/{project_id}/"
        for number, project_id in ids_by_number(ids).items()
    }


def _rename(message: Message, numbers: Mapping[str, str]) -> None:
    for part, value in message.ListFields():
        if part.name in _PARTS:
            for below in value:
                _rename(below, numbers)
        elif part.name in _RENAMED_LISTS and part.is_repeated:
            value[:] = [_renamed(text, numbers) for text in value]
        elif part.type == FieldDescriptor.TYPE_STRING:
            if part.name in _RENAMED and (name := _renamed(value, numbers)) != value:
                setattr(message, part.name, name)
            elif part.name == _FILTER:
                for old, new in numbers.items():
                    setattr(message, part.name, getattr(message, part.name).replace(old, new))
        elif isinstance(value, Message) and part.name not in _FREE:
            _rename(value, numbers)


def _renamed(name: str, numbers: Mapping[str, str]) -> str:
    """Return a name with the project's id. Takes a project alone as well: `projects/P`, or `P` as Logging
    lists it."""
    for old, new in numbers.items():
        if name.startswith(old):
            return new + name[len(old) :]
        if name in (old[:-1], old[9:-1]):
            return new[9:-1] if name == old[9:-1] else new[:-1]
    return name


def record_secrets(texts: Iterable[tuple[str, str]]) -> None:
    """Have the record of the call under way name the secrets that the programs of its job are given."""
    refs = (ref for _, text in texts for ref in secrets.references(text))
    if (names := ", ".join(sorted({ref.name for ref in refs}))) and (call := under_way()):
        call.record.detail = {"secrets": names if len(names) <= 120 else f"{names[:117]}..."}


def refuse_more(principal: Principal, services: Services, texts: Sequence[tuple[str, str]]) -> None:
    """Refuse a job with more rights than whoever creates it: another account, and of programs also secrets;
    and a job that runs as an account which is disabled or deleted. `texts`: those of the request.

    Raises PermissionDenied, which names everything that the job would have and its creator lacks, and
    FailedPrecondition.
    """
    accounts = {normalize_email(text) for name, text in texts if name in _ACCOUNT}
    accounts -= {"", principal.email}
    if principal.program is None:
        refuse_accounts(principal, accounts)
    else:
        beyond = [f"the service account {account}" for account in sorted(accounts)]
        refs = (ref for _, text in texts for ref in secrets.references(text))
        beyond += dict.fromkeys(f"the secret {ref.name!r}" for ref in refs)
        if beyond:
            raise PermissionDenied(
                f"{principal.email} may create jobs that have no more than it has itself, and this one asks "
                f"for {', '.join(beyond)}: leave that out, or have a person submit the job"
            )
    for account in sorted(accounts):
        book = services.access.book
        if lost := what_became(account, None, book):
            remedy = "gcloud iam service-accounts " + (
                f"enable {account}" if account in book.accounts else "create makes it anew"
            )
            raise FailedPrecondition(
                f"The service account {account}, as which the job is to run, {lost}, so all that its "
                f"programs call would be refused: {remedy}, or submit the job as another account."
            )


def refuse_accounts(principal: Principal, accounts: Iterable[str | None]) -> None:
    """Refuse somebody to run code as one of these service accounts, unless it is himself, the default one
    (None), or he may act as it in its own project. Raises PermissionDenied."""
    homes = {name: home_of(name) for name in accounts if name and name != principal.email}
    numbers = ids_by_number(principal.rights.projects) if homes else {}
    refused = [
        account
        for account, home in homes.items()
        if not principal.may(_ACT_AS, numbers.get(home, home))
    ]
    if refused:
        raise PermissionDenied(
            f"{principal.email} may not run code as the service account {', '.join(sorted(refused))}: that "
            f"needs the permission {_ACT_AS} in the project of the account, which the role "
            "roles/iam.serviceAccountUser has. Ask an owner of that project for it, or for jobs of your own "
            "leave serviceAccount out"
        )


def texts_of(public: object) -> Iterator[tuple[str, str]]:
    """Yield every text of a request but those of labels, each with the name of its field."""
    parts: list[tuple[str, object]] = [("", public)]
    for name, value in parts:  # Grows meanwhile: half the time of a generator for each level.
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            parts += [item for item in cast("dict[str, Any]", value).items() if item[0] != "labels"]
        elif isinstance(value, list):
            parts += [("", part) for part in cast("list[Any]", value)]


def projects_of(request: Message) -> Iterator[str]:
    """Yield the projects that a request names, by id or number, as often as they are named; "" for a name
    that has none."""
    for part, value in request.ListFields():
        is_list = part.name in _LISTS and part.is_repeated
        if not is_list and part.type == FieldDescriptor.TYPE_STRING and part.name in _NAMED:
            yield project_in(value)
        elif is_list:
            yield from map(project_in, value)
        elif part.name == _BARE:
            yield from value
        elif part.name == _ENTRIES:
            for below in value:
                yield from projects_of(below)
        elif _is_named(part):
            yield from filter(None, [project_in(value.name)])


def project_in(name: str) -> str:
    """Return the project of a full resource name; "" if it has none."""
    match name.split("/"):
        case ["projects", project, *_]:
            return project
        case _:
            return ""


def _subject(request: Message) -> str:
    """Return the name of what a request is about: its own, that of the resource in it, or their parent's."""
    for name in ("name", "resource", "parent"):
        if text := getattr(request, name, ""):
            return str(text)
    resources = (value for part, value in request.ListFields() if _is_named(part))
    return next((str(value.name) for value in resources), "")


@lru_cache(1024)
def _is_named(part: FieldDescriptor) -> bool:
    """Whether a field holds one message, and that has a name."""
    if part.type != FieldDescriptor.TYPE_MESSAGE or part.is_repeated or part.message_type is None:
        return False
    name = part.message_type.fields_by_name.get("name")
    return name is not None and name.type == FieldDescriptor.TYPE_STRING


class HandCall(Struct, frozen=True):
    """One call of a method that no descriptor set has: it takes JSON, and answers it, as it is."""

    principal: Principal
    services: Services
    #: Full name of the method.
    method: str
    #: The variables of its path.
    names: Mapping[str, str]
    body: Mapping[str, Any]
    #: Scheme and authority by which the caller reached the service.
    root: str


HandHandler = Callable[[HandCall], Awaitable[dict[str, Any]]]
"""Finds out whether the caller may, and does what is asked. Raises the errors of `api.calls.errors`."""

HandMethods = Mapping[tuple[str, str], tuple[str, HandHandler]]
"""Methods by HTTP verb and path, with their full names."""


def read_update_mask(
    paths: Sequence[str], allowed: Sequence[str], resource: Any = None
) -> tuple[str, ...]:
    """Return the fields that a mask names in either case, each once. Of no mask: those that `resource` has
    values of, of `*`: all; () without a resource. Raises InvalidRequest for what cannot be updated."""
    spelled = {camel(field): field for field in allowed}
    fields = tuple(dict.fromkeys(spelled.get(path, path) for path in paths if path != "*"))
    if wrong := [field for field in fields if field not in allowed]:
        text = f"Only {', '.join(allowed)} can be updated, not {', '.join(wrong)}."
        raise InvalidRequest((Violation("update_mask", text),))
    all_of = () if resource is None else allowed
    return fields or tuple([field for field in all_of if paths or getattr(resource, field)])


def camel(field: str) -> str:
    """Return `displayName` for `display_name`."""
    first, *others = field.split("_")
    return first + "".join(map(str.title, others))


async def audited(
    answer: Callable[[], Awaitable[T]],
    services: Services,
    principal: Principal,
    method: str,
    *,
    project: str = "",
    resource: str = "",
) -> T:
    """Return the answer, with the call recorded with its first write; or after it, if it has written nothing
    or lacks a right. `project` and `resource`: what it is about, as far as the request says so. Raises
    Unauthenticated if who calls has lost the right meanwhile, as while the body was sent."""
    services.access.renew(principal)
    if not is_recorded(method):
        return await answer()
    voucher = services.access.voucher(principal)
    by = voucher.by if isinstance(voucher, Bearer) else None
    acting_as = principal.email if by else None
    job = str(principal.program.job_uid) if principal.program is not None else None
    record = AuditRecord(by or principal.email, method, resource, acting_as, job=job)
    with recording(call := RecordedCall(services.now(), record, project)):
        try:
            answered = await answer()
        except PermissionDenied:
            if call.project.isdigit():
                book = services.access.book
                known = (services.settings.project, *book.projects, *book.policy.projects())
                call.project = ids_by_number(known).get(call.project, call.project)
            await services.access.record_refusal()
            raise
        await services.access.record()
    return answered


async def tell_of_stranger(services: Services, source: str, detail: Mapping[str, object]) -> None:
    """Have it recorded that an address has shown unknown credentials again and again."""
    method = "trainshed.v1.Tokens.Refused"
    status = StatusCode.UNAUTHENTICATED.number
    record = AuditRecord("", method, source, source=source, detail=detail, status=status)
    with recording(RecordedCall(services.now(), record)), contextlib.suppress(Unavailable):
        await services.access.record()


async def actor_of(reader: Reader, principal: Principal) -> Actor:
    """Return what is stored of a principal. Raises Unauthenticated for a program whose job was deleted."""
    if principal.program is None:
        return Actor(principal.email)
    uid = JobUid(principal.program.job_uid)
    try:
        job, _ = await reader.job_by_uid(uid)
    except NotFound:
        raise Unauthenticated(
            f"The access token is that of the job {uid}, which is not there: use a token of your own."
        ) from None
    creator = job.creator
    acting = creator.job if creator is not None else None
    root = acting.root if acting else uid
    return Actor(principal.email, ActingJob(uid, job.name, root, person_of(creator)))
