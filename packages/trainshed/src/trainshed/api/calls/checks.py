"""Reports all errors of a request at once, even if part of the request cannot be parsed
(spec/submit#refusals).

`wire` rejects a body with an unknown field or a wrong type before a handler reads it. The parsed part is
still passed to the handler's own check, so that the caller receives all errors in one response.
"""

from collections.abc import Callable, Sequence
from typing import Final

from google.protobuf.message import Message

from trainshed.core import errors as core
from trainshed.wire.status import UnknownEnum, Violation, WireError, limit_violations

_MAX_UNKNOWN_ENUMS: Final = 8
"""Maximum number of unknown enum fields to try. It limits the cost of a request with many errors."""


def with_check_violations(error: WireError, check: Callable[[Message], object]) -> WireError:
    """Return the error together with the violations that the method's check finds in the parsed part."""
    if error.partial is None:
        return error
    partial = error.partial
    try:
        checked = certain_violations(lambda: check(partial), error.unknown_enums)
    except Exception:
        # Any exception: the check reads a message that is known to be broken. Its failure, such as an invalid
        # project name, must not hide the error at hand. The caller receives that failure after the next
        # request.
        return error
    # Field names as in the specifications: `job_spec.x` for `custom_job.job_spec.x`, and, for `ml`, `x` for
    # `job.training_input.x`.
    known = tuple(
        violation.field.partition(".")[2].removeprefix("training_input.")
        for violation in limit_violations(error.violations)
    )
    further = tuple(
        Violation(v.field, v.description)
        for v in checked
        if not any(is_within(v.field, path) for path in known)
    )
    # The texts of `wire` contain their fields. The message consists only of texts, so the other texts must
    # contain their fields too.
    texts = (str(error), *(f"Field: {v.field}; {v.description}" for v in limit_violations(further)))
    return WireError((*error.violations, *further), partial, message="\n".join(texts))


def certain_violations(
    check: Callable[[], object], unknown_enums: Sequence[UnknownEnum]
) -> tuple[core.Violation, ...]:
    """Return the violations that `check` finds for all values of the unknown enum fields. Other violations
    may only result from an unset field, which the caller did not intend. Raises what `check` raises, except
    for InvalidRequest."""
    common = _violations(check)
    for field in unknown_enums[:_MAX_UNKNOWN_ENUMS]:
        for number in field.numbers:
            if not common:
                break
            field.decide(number)
            also = frozenset(_violations(check))
            common = tuple(fault for fault in common if fault in also)
        field.decide(0)
    return common


def _violations(check: Callable[[], object]) -> tuple[core.Violation, ...]:
    try:
        check()
    except core.InvalidRequest as invalid:
        return invalid.violations
    return ()


def is_within(field: str, path: str) -> bool:
    """Whether a field is equal to or below an unreadable field."""
    return field == path or field.startswith((f"{path}.", f"{path}["))
