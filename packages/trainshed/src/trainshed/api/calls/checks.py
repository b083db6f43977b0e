"""Reports all errors of a request at once, even if a part of the request cannot be parsed
(spec/submit#refusals).

`wire` rejects a body with an unknown field or a wrong type before a handler receives it. The part that was
parsed is still passed to the handler's check. The caller therefore receives all errors in one response.
"""

from collections.abc import Callable, Sequence
from typing import Final

from google.protobuf.message import Message

from trainshed.core import errors as core
from trainshed.wire.status import UnknownEnum, Violation, WireError, limit_violations

_MAX_UNKNOWN_ENUMS: Final = 8
"""Maximum number of enum fields with an unknown value for which `certain_violations` tries all known values.
The limit reduces the cost of a request with many errors."""


def with_check_violations(error: WireError, check: Callable[[Message], object]) -> WireError:
    """Return the error with additional violations, which the method's check finds in the part that was
    parsed."""
    if error.partial is None:
        return error
    partial = error.partial
    try:
        checked = certain_violations(lambda: check(partial), error.unknown_enums)
    except Exception:
        # Any exception is ignored, because the checked message is known to be incomplete. An exception for an
        # invalid project name, for example, must not hide `error`. The caller receives it in response to the
        # next request.
        return error
    # Convert to field names of the specifications: `job_spec.x` instead of `custom_job.job_spec.x`, and for
    # `ml` `x` instead of `job.training_input.x`.
    known = tuple(
        violation.field.partition(".")[2].removeprefix("training_input.")
        for violation in limit_violations(error.violations)
    )
    further = tuple(
        Violation(v.field, v.description)
        for v in checked
        if not any(is_within(v.field, path) for path in known)
    )
    # The error's message consists only of violation texts. The texts from `wire` contain their fields, so the
    # other texts must contain theirs as well.
    texts = (str(error), *(f"Field: {v.field}; {v.description}" for v in limit_violations(further)))
    return WireError((*error.violations, *further), partial, message="\n".join(texts))


def certain_violations(
    check: Callable[[], object], unknown_enums: Sequence[UnknownEnum]
) -> tuple[core.Violation, ...]:
    """Return the violations that `check` finds for every value of the unknown enum fields. All other
    violations might result only from a field that is unset because its value is unknown. Raises the
    exceptions of `check` except InvalidRequest."""
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
    """Whether a field is the unreadable field `path`, or below it."""
    return field == path or field.startswith((f"{path}.", f"{path}["))
