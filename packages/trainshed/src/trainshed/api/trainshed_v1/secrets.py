"""Secrets of a project: set, list and delete them. No method returns a value (spec/operations#secrets).

Without `project` the service's own project is meant.
"""

from collections.abc import Iterable
from itertools import groupby

from trainshed.access.sealing import KeyUnusable, SecretId
from trainshed.api.calls.services import Services
from trainshed.api.calls.timestamps import text_micros
from trainshed.api.trainshed_v1.call import JsonCall, queried_project, read_project
from trainshed.core.errors import FailedPrecondition, Unavailable
from trainshed.core.requests import Faults
from trainshed.core.secrets import name_fault, value_fault
from trainshed.store.records import SecretVersion
from trainshed.wire.trainshed_v1 import access as records
from trainshed.wire.trainshed_v1.record import Nothing


async def list_(call: JsonCall) -> records.SecretList:
    """`GET /trainshed/v1/secrets[?project=P]`: list the project's secrets."""
    project = queried_project(call, "secrets")
    stored = await call.services.secrets.versions(project)
    grouped = groupby(stored, key=lambda version: version.name)
    return records.SecretList(
        project=project, secrets=tuple(_view(name, versions) for name, versions in grouped)
    )


async def set_(call: JsonCall) -> records.StoredSecret:
    """`POST /trainshed/v1/secrets`: store a new version, which programs get from now on unless a job names
    another one. Raises FailedPrecondition (the key is missing), Unavailable."""
    services, (sent, faults) = call.services, call.sent(records.SecretValue)
    project = read_project(call, sent.project, "secrets", faults)
    name, value = sent.name, sent.value
    if fault := name_fault(name):
        faults.add("name", fault)
    if fault := value_fault(value):
        faults.add("value", fault)
    faults.refuse()
    sealer = services.sealer
    try:
        await _refuse_without_key(services)
        stored = await services.secrets.add(
            project,
            name,
            services.now(),
            lambda version: sealer.seal(value, SecretId(project, name, version)),
        )
    except KeyUnusable as failure:
        raise FailedPrecondition(str(failure)) from None
    except OSError as failure:
        raise Unavailable(
            f"The key of the secrets cannot be kept ({failure.strerror}); nothing was stored. Make room, and "
            "send the request again."
        ) from None
    return records.StoredSecret(
        project=project,
        name=name,
        version=stored.version,
        created=text_micros(stored.created),
    )


async def delete(call: JsonCall) -> Nothing:
    """`DELETE /trainshed/v1/secrets/{name}[?project=P][&version=N]`: delete a version, or all of them. Raises
    NotFound. Running programs keep what they were given; jobs that name it can no longer start."""
    faults = Faults()
    project = read_project(call, call.parameter("project"), "secrets", faults)
    version = call.number("version")
    if call.parameter("version") and not version:
        faults.add(
            "version", "Versions are numbered from 1 on; leave it out to delete all of them."
        )
    faults.refuse()
    await call.services.secrets.delete(project, call.target, version)
    return Nothing()


async def _refuse_without_key(services: Services) -> None:
    """Raise FailedPrecondition if secrets are stored whose key is missing, because a new key would not open
    them. Also raises KeyUnusable."""
    if not services.sealer.has_key and await services.secrets.has_any():
        raise FailedPrecondition(services.sealer.missing())


def _view(name: str, versions: Iterable[SecretVersion]) -> records.Secret:
    every = tuple(versions)
    return records.Secret(
        name=name,
        created=text_micros(every[0].created),
        last_used=text_micros(max(version.used for version in every)),
        versions=tuple(
            records.SecretVersion(
                version=version.version,
                created=text_micros(version.created),
                last_used=text_micros(version.used),
            )
            for version in every
        ),
    )
