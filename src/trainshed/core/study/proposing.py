"""A trial that a client makes itself: a point that it wants to have tried, or one that it has tried already
(spec/tuning#trials)."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from trainshed.core.requests import Faults
from trainshed.core.study.final import final_measurement
from trainshed.core.study.reading import (
    GivenMeasurement,
    GivenParameter,
    read_measurement,
    read_parameters,
)
from trainshed.core.study.spec import StudySpec
from trainshed.core.study.trials import Measurement, StudyUid, Trial, TrialState


class Claim(enum.StrEnum):
    """What the client says of its trial. WANTED: somebody should try it. SUCCEEDED, INFEASIBLE: it was
    tried."""

    WANTED = "WANTED"
    SUCCEEDED = "SUCCEEDED"
    INFEASIBLE = "INFEASIBLE"


@dataclass(frozen=True, slots=True)
class GivenTrial:
    """A trial as sent at `path`. A `final` measurement makes it one that SUCCEEDED, whatever the claim,
    unless it is INFEASIBLE. `reason`: why it is."""

    path: str
    parameters: Sequence[GivenParameter]
    measurements: Sequence[GivenMeasurement] = ()
    final: GivenMeasurement | None = None
    claim: Claim = Claim.WANTED
    client: str = ""
    reason: str = ""


def parse_trial(
    spec: StudySpec, study: StudyUid, given: GivenTrial, now: int
) -> tuple[Trial, tuple[Measurement, ...]]:
    """The trial, without a number, and its measurements, ascending by (step, elapsed) and each pair once.

    One that is only wanted is REQUESTED, belongs to nobody, and is given to the next client that asks for
    suggestions. Raises InvalidRequest with every violation.
    """
    faults = Faults()
    parameters = read_parameters(spec, given.parameters, faults, at=f"{given.path}.parameters")
    read = [read_measurement(spec, each, faults, final=False) for each in given.measurements]
    by_place = {(each.step, each.elapsed): each for each in read}
    measurements = tuple(by_place[place] for place in sorted(by_place))
    trial = Trial(study, 0, TrialState.REQUESTED, parameters, created=now)
    is_infeasible = given.claim is Claim.INFEASIBLE
    final = None
    if not is_infeasible and given.final is not None:
        final = read_measurement(spec, given.final, faults, final=True)
    elif given.claim is Claim.SUCCEEDED:
        final = final_measurement(spec, measurements)
        if final is None:
            faults.add(
                f"{given.path}.final_measurement",
                "A trial that SUCCEEDED has a final measurement: give it, or a measurement with every metric "
                "of the study.",
            )
    faults.refuse()
    if final is None and not is_infeasible:
        return trial, measurements
    over = Trial(
        study,
        0,
        TrialState.INFEASIBLE if is_infeasible else TrialState.SUCCEEDED,
        parameters,
        created=now,
        started=now,
        ended=now,
        client=given.client,
        final=final,
        infeasible_reason=given.reason if is_infeasible else "",
    )
    return over, measurements
