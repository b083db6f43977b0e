"""Records of drills and the report on how a job resumed after them."""

from msgspec import UNSET, UnsetType

from trainshed.wire.trainshed_v1.record import Record
from trainshed.wire.trainshed_v1.timeline import Verdict


class DrillOrder(Record, frozen=True):
    """A drill to be ordered."""

    #: A word of `DrillKind`.
    kind: str = ""
    #: "workerpool1-0", "worker 0" or "worker-replica-0"; "" = the primary.
    replica: str = ""
    #: The drill waits for a line of that replica that matches this regular expression (RE2); "" = it comes as
    #: soon as the replica runs.
    at_line: str = ""


class Drill(DrillOrder, frozen=True):
    """A drill of a job."""

    #: 0 = not taken up yet.
    number: int = 0
    task: str = ""
    #: "ordered" (not yet written into the job), "armed", "fired" (being injected) or "done".
    state: str = ""
    order_time: str = ""
    fire_time: str = ""
    #: The attempt and incarnation that it hit; 0 before.
    attempt: int = 0
    incarnation: int = 0


class Restart(Record, frozen=True):
    """The incarnation after a drill."""

    at: str = ""
    attempt: int = 0
    incarnation: int = 0


class Step(Record, frozen=True):
    """A step that a line of the log mentions."""

    number: int = 0
    at: str = ""


class Steps(Record, frozen=True):
    """The steps before and after a drill."""

    #: The replica whose log mentions them; "" = several replicas'.
    replica: str = ""
    first: Step | None = None
    before: Step | None = None
    after: Step | None = None


class ResumeFinding(Record, frozen=True):
    """The result of one drill. One that has not fired has only `drill, outcome, why, advice`."""

    drill: Drill = Drill()
    #: "resumed", "started_over", "unknown"; "" = it has not fired.
    outcome: str = ""
    why: str = ""
    #: Number of steps that were repeated; null if not known.
    lost: int | UnsetType | None = UNSET
    #: The unit of `lost`.
    unit: str | UnsetType = UNSET
    advice: str = ""
    verdict: Verdict | UnsetType | None = UNSET
    #: From the end of what was hit to the next incarnation's start; null if there is none.
    down_seconds: float | UnsetType | None = UNSET
    #: From that start to its first line.
    silent_seconds: float | UnsetType | None = UNSET
    restart: Restart | UnsetType | None = UNSET
    steps: Steps | UnsetType = UNSET


class ResumeReport(Record, frozen=True):
    """Whether a job resumed where it was after its drills."""

    name: str = ""
    #: PASS (all resumed), FAIL (one started over) or UNKNOWN.
    result: str = ""
    #: In the order in which they were ordered.
    drills: tuple[ResumeFinding, ...] = ()
