"""The errors of requests, which the package `api` maps to google.rpc codes, and their suggestions.

A replica's failure is never a request error: it is recorded as data (`core.job.ExitRecord`).
"""

import re
from collections.abc import Iterable

from msgspec import Struct

_NUMBER = re.compile(r"[0-9]+")


class Violation(Struct, frozen=True):
    """One invalid field of a request.

    `field` is the path in the spelling of the called API (`jobSpec.workerPoolSpecs[0].replicaCount` becomes
    `job_spec.worker_pool_specs[0].replica_count` on Vertex). `description` contains the error and the valid
    values.
    """

    field: str
    description: str


class RequestError(Exception):
    """A request that the service cannot carry out. Subclasses specify the reason. The message contains the
    next step."""


class InvalidRequest(RequestError):
    """The request breaks rules. `violations` lists every fault (spec/submit#refusals)."""

    def __init__(self, violations: tuple[Violation, ...]) -> None:
        super().__init__("; ".join(f"{v.field}: {v.description}" for v in violations))
        self.violations = violations


class NotFound(RequestError):
    """The resource that the request specifies does not exist."""


class AlreadyExists(RequestError):
    """A resource with the name in the request already exists. Names are never reused within a project."""


class FailedPrecondition(RequestError):
    """The resource is in a state that does not allow the request."""


class Aborted(RequestError):
    """The resource changed since it was read (an etag that no longer matches)."""


class Unauthenticated(RequestError):
    """The request has no credentials, or the service did not issue its credentials."""


class PermissionDenied(RequestError):
    """The caller has no permission for the request."""


class ResourceExhausted(RequestError):
    """The caller has reached a limit, such as a quota. The same request may succeed later."""


class Unavailable(RequestError):
    """A part of the service is currently unreachable. The client may retry the request."""


def format_list(names: Iterable[str], most: int = 20) -> str:
    """Return at most `most` distinct names as a list for a sentence: `1`, `1 and 2`, `1, 2, 3 and 7 more`."""
    names = tuple(dict.fromkeys(names))
    more = [f"{len(names) - most} more"] if len(names) > most else []
    *first, last = [*names[:most], *more] or [""]
    return f"{', '.join(first)} and {last}" if first else last


def closest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean X?"` for the known name most similar to `name`, or "" if none is similar.

    The comparison ignores case. If `name` contains a number, known names with all its words come first. Words
    count more than numbers: n1-standard-3 is nearer to n1-standard-4 than to n1-standard-32.
    """
    import difflib  # Imported here, because an idle service does not need it (docs/adr/0083).

    known, meant = tuple(known), set(name.lower().split("_"))
    whole = [candidate for candidate in known if meant <= set(candidate.lower().split("_"))]
    if whole and _NUMBER.search(name):
        return f" Did you mean {whole[0]}?"
    by_words: dict[str, list[str]] = {}
    for candidate in known:
        by_words.setdefault(_NUMBER.sub("#", candidate.lower()), []).append(candidate)
    words = difflib.get_close_matches(_NUMBER.sub("#", name.lower()), by_words, n=1)
    if not words:
        return ""
    wanted = _numbers(name)
    near = min(by_words[words[0]], key=lambda candidate: _distance(_numbers(candidate), wanted))
    return f" Did you mean {near}?"


def _numbers(name: str) -> tuple[float, ...]:
    # Convert to `float`, because `int` raises an error for numbers with thousands of digits.
    return tuple(map(float, _NUMBER.findall(name)))


def _distance(numbers: tuple[float, ...], wanted: tuple[float, ...]) -> tuple[tuple[float, bool], ...]:
    """Return the distance between two lists of numbers. The first number is the most important. Of two
    equally distant numbers, the larger one is nearer, because it provides enough capacity."""
    return tuple((abs(n - a), n < a) for n, a in zip(numbers, wanted, strict=False))
