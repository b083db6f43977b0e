"""The errors of requests, which the package `api` maps to google.rpc codes.

A replica's failure is never one of these: it is data (`job.exits.ExitRecord`).
"""

from msgspec import Struct


class Violation(Struct, frozen=True):
    """One offending field of a request.

    `field` is the path in the spelling of the API that was called (`jobSpec.workerPoolSpecs[0].replicaCount`
    becomes `job_spec.worker_pool_specs[0].replica_count` on Vertex), `description` says what is wrong
    and what would be right.
    """

    field: str
    description: str


class RequestError(Exception):
    """A request that cannot be carried out. Leaf classes say why; the message says what to do next."""


class InvalidRequest(RequestError):
    """The request breaks rules; `violations` lists every fault (spec/submit#refusals)."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations))
        self.violations = violations


class NotFound(RequestError):
    """The named resource does not exist."""


class AlreadyExists(RequestError):
    """A resource of that name exists; names are never reused within a project."""


class FailedPrecondition(RequestError):
    """The resource is in a state that does not allow the request."""


class Aborted(RequestError):
    """The resource changed since it was read (an etag that no longer matches)."""


class Unauthenticated(RequestError):
    """No credentials, or credentials this service did not issue."""


class PermissionDenied(RequestError):
    """The principal may not do this."""


class ResourceExhausted(RequestError):
    """A limit on how much there may be at a time is reached; the request may be sent again later."""


class Unavailable(RequestError):
    """A part of the service is not reachable now; the request may be sent again."""
