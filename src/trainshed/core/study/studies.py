"""The durable record of a study that a client made through the study API (spec/tuning#studies,
facts/tuning#vizier)."""

import enum
from dataclasses import dataclass

from trainshed.core.names import StudyName
from trainshed.core.study.spec import StudySpec
from trainshed.core.study.trials import StudyUid


class StudyState(enum.StrEnum):
    """ACTIVE: trials may be suggested. INACTIVE: it was paused. COMPLETED: it came to one of its limits, or
    nothing is left to try."""

    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    COMPLETED = "COMPLETED"


@dataclass(frozen=True, slots=True)
class Study:
    """`display_name` is unique in its location. `created`: ns. `public_json`: the study as given."""

    uid: StudyUid
    name: StudyName
    display_name: str
    spec: StudySpec
    public_json: str
    created: int
    state: StudyState = StudyState.ACTIVE
    inactive_reason: str = ""
