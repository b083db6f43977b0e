"""Reports everything that is wrong with a request at once, even if part of it cannot be read
(spec/submit#refusals).

A body with an unknown field or a wrong type is refused by `wire` before a handler sees it. The part that
could be read is still passed to the handler's own check, so that one answer tells the caller of every fault.
"""

from collections.abc import Callable, Sequence
from typing import Final

from google.protobuf.message import Message

from trainshed.core import errors as core
from trainshed.wire.status import UnknownEnum, Violation, WireError, limit_violations

_MAX_UNKNOWN_ENUMS: Final = 8
"""Maximum number of unknown enum fields to try, to limit the work for a request with many faults."""


def completed(refused: WireError, check: Callable[[Message], object]) -> WireError:
    """Return the refusal with the further faults that the method's check finds in the readable part."""
    if refused.partial is None:
        return refused
    partial = refused.partial
    try:
        certain = certain_faults(lambda: check(partial), refused.unknown_enums)
    except Exception:
        # Broad, because the check reads a message that is known to be broken: whatever it stumbles over (the
        # project's name, say) must not hide the refusal at hand. The caller is told of it once this is
        # mended.
        return refused
    # As the specifications name them: `job_spec.x` for `custom_job.job_spec.x`; for `ml`, `x` for
    # `job.training_input.x`.
    known = tuple(
        violation.field.partition(".")[2].removeprefix("training_input.")
        for violation in limit_violations(refused.violations)
    )
    further = tuple(
        Violation(v.field, v.description)
        for v in certain
        if not any(within(v.field, path) for path in known)
    )
    # The texts of `wire` name their fields themselves. The message consists of texts alone, so the other
    # texts have to name their fields too.
    texts = (
        str(refused),
        *(f"Field: {v.field}; {v.description}" for v in limit_violations(further)),
    )
    return WireError((*refused.violations, *further), partial, message="\n".join(texts))


def certain_faults(
    check: Callable[[], object], unknown_enums: Sequence[UnknownEnum]
) -> tuple[core.Violation, ...]:
    """Return the faults that `check` finds whatever values the unknown enums get. Other faults may only
    result from a field being unset, which the caller did not intend. Raises what `check` raises, except for
    InvalidRequest."""
    common = _faults(check)
    for field in unknown_enums[:_MAX_UNKNOWN_ENUMS]:
        for number in field.numbers:
            if not common:
                break
            field.decide(number)
            also = frozenset(_faults(check))
            common = tuple(fault for fault in common if fault in also)
        field.decide(0)
    return common


def _faults(check: Callable[[], object]) -> tuple[core.Violation, ...]:
    try:
        check()
    except core.InvalidRequest as invalid:
        return invalid.violations
    return ()


def within(field: str, path: str) -> bool:
    """Whether a field is, or lies below, one that could not be read."""
    return field == path or field.startswith((f"{path}.", f"{path}["))
