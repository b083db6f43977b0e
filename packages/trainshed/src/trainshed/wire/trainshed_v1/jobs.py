"""Records of the service itself, and of jobs, tuning jobs and pipelines, in lists and in full."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from trainshed.wire.trainshed_v1.capacity import Waiting
from trainshed.wire.trainshed_v1.record import Record


class LoopLag(Record, frozen=True):
    """How late the service's event loop was, in seconds."""

    recent_lag: float = 0.0
    longest_lag: float = 0.0
    #: The longest time that one task kept the loop busy.
    computed: float = 0.0


class Outbox(Record, frozen=True):
    """Notifications that are not delivered yet."""

    #: Targets that jobs may name.
    targets: tuple[str, ...] = ()
    #: Notifications that are still to be delivered.
    waiting: int = 0
    #: Those of them that were tried already.
    failing: int = 0


class Disk(Record, frozen=True):
    """The file system of the service's data."""

    total_bytes: int = 0
    free_bytes: int = 0


class Status(Record, frozen=True):
    """The service, and the defaults for clients."""

    version: str = ""
    #: When it started; "" = not known.
    start_time: str = ""
    #: The caller.
    principal: str = ""
    apis: tuple[str, ...] = ()
    #: Defaults for clients that name none.
    project: str = ""
    region: str = ""
    bucket: str = ""
    #: Types of the accelerators of its nodes, the most frequent first.
    accelerators: tuple[str, ...] = ()
    #: What the engine can do or enforce on its machine.
    engine: Mapping[str, Any] = {}
    event_loop: LoopLag = LoopLag()
    #: Only for who may see the service's settings.
    disk: Disk | UnsetType = UNSET
    #: How long a job is kept after its end, as in the settings; "" = for ever.
    retention_jobs: str = ""
    #: Absent if there are no notifications.
    notifications: Outbox | UnsetType = UNSET


class JobError(Record, frozen=True):
    """The public error of a job."""

    #: Number of a google.rpc code.
    code: int = 0
    message: str = ""
    #: What was wrong, in a sentence; "" = the message begins with it.
    reason: str = ""


class JobSummary(Record, frozen=True):
    """A job, tuning job or pipeline in short."""

    #: Full name of the public resource.
    name: str = ""
    #: "vertex" or "ml".
    api: str = ""
    #: "custom", "tuning" or "pipeline".
    kind: str = "custom"
    #: Name of the tuning job or pipeline that made it; "" = a client did.
    parent: str = ""
    #: Number of the trial that it evaluates; 0 = none.
    trial: int = 0
    uid: str = ""
    project: str = ""
    job_id: str = ""
    display_name: str = ""
    #: The address of whoever is responsible for it; "" = it is not known.
    user: str = ""
    #: A word of `JobState`, of pipelines as well.
    state: str = ""
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    update_time: str = ""
    labels: Mapping[str, str] = {}
    #: Absent while there is none; null is read as absent.
    error: JobError | UnsetType | None = UNSET
    #: How it is doing now, if that was asked for.
    glance: "Glance | UnsetType" = UNSET
    #: How far it has come; absent if that is not known, was not asked for, or while the job is watched.
    progress: "Progress | UnsetType" = UNSET
    #: What it measures, if that was asked for.
    trend: "Trend | UnsetType" = UNSET
    #: The row of the failure table that decided the end; "" before.
    rule: str = ""
    #: How many machines and accelerators it asked for, by type; of a tuning job each trial.
    machines: Mapping[str, int] = {}
    accelerators: Mapping[str, int] = {}


class Glance(Record, frozen=True):
    """What a job waits for, or prints."""

    #: Why it has no capacity or what it waits for; "" = it waits for nothing.
    waits: str = ""
    #: The last line that its primary replica printed, cut off at 300 characters; "" if it is over.
    last_line: str = ""


class Trend(Record, frozen=True):
    """What a job measures, in the measure that tells most of its training: loss, if it has one."""

    measure: str = ""
    #: Some of the values, oldest first; the last is the newest. See `CurvePoint` for what is no number.
    values: tuple[float | str, ...] = ()


class Progress(Record, frozen=True):
    """How far a job has come."""

    #: How much is done, from 0 to 1; null if that is not known.
    done: float | None = None
    #: The same in words, such as "epoch 3 of 10" or "12 of 40 trials"; "" = not known.
    text: str = ""
    #: Seconds that it will still take; null if that is not known.
    remaining_seconds: float | None = None
    #: Source of this: "output" = what its program prints, "trials"; "" = not known.
    source: str = ""


class JobsOf(Record, frozen=True):
    """Whose jobs are cancelled."""

    #: "" = the service's default project; "-" = all projects.
    project: str = ""
    #: An address; "" = all of the project, which must then be named.
    user: str = ""


class CancelledJobs(Record, frozen=True):
    """Jobs that are being cancelled, by their full names."""

    jobs: tuple[str, ...] = ()


class JobList(Record, frozen=True):
    """A page of a list, newest first. A short page with a token means that there is more."""

    jobs: tuple[JobSummary, ...] = ()
    #: "" on the last page.
    next_page_token: str = ""
    #: If that was asked for, how many jobs of the project are in each state, counted up to 1,000.
    counts: Mapping[str, int] | UnsetType = UNSET


class Failure(Record, frozen=True):
    """The typed facts beside the public error."""

    #: The row of the failure table that decided the end.
    rule: str = ""
    cause: str = ""
    #: The replica whose end it was; "" = the whole attempt's.
    replica: str = ""
    #: The same in the public API's words.
    task: str = ""
    #: Exit status of the program, null if it has none.
    status: int | None = None
    #: What was wrong, in a sentence.
    reason: str = ""
    #: Last lines of the program.
    tail: str = ""
    #: What to do about them, in a few sentences.
    advice: str = ""


class ReplicaExit(Record, frozen=True):
    """How a replica's program ended."""

    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    #: Whether the service had asked it to end.
    stopped: bool = False
    start_time: str = ""
    end_time: str = ""
    #: Lines that it wrote.
    log_lines: int = 0


class Replica(Record, frozen=True):
    """One replica of a job's current attempt."""

    #: Such as "workerpool0-0".
    id: str = ""
    #: The same in the public API's words.
    task: str = ""
    #: A word of `ReplicaState`.
    state: str = ""
    node: str = ""
    #: Number of the incarnation, from 1 on.
    incarnation: int = 1
    start_time: str = ""
    #: Restarts in this attempt, by rule.
    restarts: Mapping[str, int] = {}
    #: Why it was asked to leave its node; "" = it was not.
    leaving: str = ""
    #: How its program began: "started warm: ..." with what was imported, or "started cold: ..." with the
    #: reason; "" = its job did not ask for a warm start, or it has not begun.
    began: str = ""
    #: Null while it has not ended.
    exit: ReplicaExit | None = None


class KeptAutopsy(Record, frozen=True):
    """What is kept of a replica that failed, in short."""

    replica: str = ""
    task: str = ""
    attempt: int = 0
    expire_time: str = ""


class Tuning(Record, frozen=True):
    """A search for hyperparameters and how far it has come."""

    metric: str = ""
    #: "MAXIMIZE" or "MINIMIZE".
    goal: str = ""
    algorithm: str = ""
    max_trials: int = 0
    parallel_trials: int = 0
    first_trial: int = 1
    #: Replicas of each trial's job.
    replicas: int = 1
    #: How many trials have come to each end.
    succeeded: int = 0
    infeasible: int = 0
    #: Those of the infeasible trials that count against the job.
    failed: int = 0
    running: int = 0
    #: Number of the best trial so far; 0 = none.
    best: int = 0
    #: Null without a best trial.
    best_value: float | None = None
    #: Whether nothing is left to try.
    exhausted: bool = False
    #: The rule by which trials are stopped early: "median"; "" = none.
    stopping: str = ""


class Trial(Record, frozen=True):
    """One trial of a tuning job."""

    number: int = 0
    state: str = ""
    parameters: Mapping[str, Any] = {}
    #: Objective of the final measurement; null before it.
    value: float | None = None
    #: Step of the final measurement; 0 before it.
    step: int = 0
    #: All metrics of the final measurement.
    metrics: Mapping[str, float] = {}
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    #: Name of the job that evaluates it.
    job: str = ""
    #: That job's state; "" if it was deleted.
    job_state: str = ""
    stopped_early: bool = False
    #: Why it is infeasible, or is being stopped.
    reason: str = ""
    #: `[step, value]` of the objective: at most 60 of the points, including the first and the last.
    curve: tuple[tuple[int, float], ...] = ()


class OutlookAxis(Record, frozen=True):
    """The places of one parameter in an outlook."""

    name: str = ""
    values: tuple[float | int | str, ...] = ()
    is_log: bool = False


class Outlook(Record, frozen=True):
    """What the model of a search expects of its first metric over one or two parameters."""

    #: Why it has no model of them yet; "" = it has one.
    reason: str = ""
    metric: str = ""
    #: Whether larger is better.
    is_maximized: bool = False
    #: The best trial, and its other parameters, which all places have.
    best: int = 0
    others: Mapping[str, float | int | str] = {}
    axes: tuple[OutlookAxis, ...] = ()
    #: At each place of the first axis, for all of the second: the mean, and one standard deviation to both
    #: sides of it.
    expected: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    #: Of trials: the values of the axes' parameters, then what was measured.
    points: tuple[tuple[float | int | str, ...], ...] = ()


class Pipeline(Record, frozen=True):
    """A pipeline's own facts."""

    #: Kind of training.
    task: str = ""
    #: Name of its job.
    job: str = ""
    #: That job's state; "" if it was deleted.
    job_state: str = ""
    #: Name of the model version that it left; "" = none yet.
    model: str = ""


class JobDescription(JobSummary, frozen=True):
    """Everything that is known of a job, tuning job or pipeline now."""

    #: Why it has no capacity; null if it has.
    waiting: Waiting | None = None
    #: The same, or what a job that is not running yet waits for, as texts.
    waits: tuple[str, ...] = ()
    failure: Failure | None = None
    #: What it runs in instead of what it asks for, and how to get that, as texts.
    substitutions: tuple[str, ...] = ()
    #: Of a job: number of the current attempt.
    attempt: int | UnsetType = UNSET
    #: Of a job: retries so far, by rule.
    retries: Mapping[str, int] | UnsetType = UNSET
    #: Of a job.
    replicas: tuple[Replica, ...] | UnsetType = UNSET
    #: Of a job: what is kept of failed replicas.
    autopsies: tuple[KeptAutopsy, ...] | UnsetType = UNSET
    #: Of a job: links to shells by `task`, while it runs, if it has asked for them.
    web_access_uris: Mapping[str, str] | UnsetType = UNSET
    #: Of a job: addresses that open its web pages, for who is signed in to the console, by name.
    pages: Mapping[str, str] | UnsetType = UNSET
    #: Opens TensorBoard in a browser, if there are event files; not while the job is watched.
    tensorboard_uri: str | UnsetType = UNSET
    #: Warnings of its replicas, each once: files that went to no bucket, a full disk, ranks. Empty while the
    #: job is watched.
    warnings: tuple[str, ...] = ()
    #: Of a tuning job.
    tuning: Tuning | UnsetType = UNSET
    #: Of a tuning job, ascending by number.
    trials: tuple[Trial, ...] | UnsetType = UNSET
    #: Who submitted it; "" = not known, or while the job is watched.
    creator: str = ""
    #: Of a pipeline.
    pipeline: Pipeline | UnsetType = UNSET
    #: Of a pipeline: its job, without the resource; null if that was deleted.
    child: "JobDescription | UnsetType | None" = UNSET
    #: The public resource; absent in a `child`, and while the job is watched.
    resource: Mapping[str, Any] | UnsetType = UNSET


class ReplicaChoice(Record, frozen=True):
    """Names a replica."""

    #: As for a drill; "" = the primary.
    replica: str = ""
    #: Whether what it left when it failed is meant, not the running replica.
    autopsy: bool = False
    #: Number of the attempt; 0 = the newest.
    attempt: int = 0
    #: A port in it, by number or by the name of one of the job's pages, in place of a shell; "" = a shell.
    port: str = ""


class ShellTicket(Record, frozen=True):
    """A ticket for one shell or one connection to a port; it can be used once, within a minute."""

    token: str = ""
    expire_time: str = ""
    #: Path of the WebSocket.
    path: str = ""
    #: URI of a page for a browser; "" = pages of jobs have no host names here.
    uri: str = ""
    job: str = ""
    replica: str = ""
    task: str = ""
    attempt: int = 0


class ViewRequest(Record, frozen=True):
    """What a view shows."""

    #: Further jobs, by name, id or uid, to compare with the one of the path.
    others: tuple[str, ...] = ()


class ViewLink(Record, frozen=True):
    """A link that opens TensorBoard for some jobs."""

    #: The page for a browser. Anybody who has it can look, as long as the jobs exist.
    uri: str = ""
    #: What the page sends to open it.
    view: str = ""
    key: str = ""
    #: Directories of the event files.
    directories: tuple[str, ...] = ()
    #: Whether there are any yet.
    has_files: bool = False
