"""Records of the service's status, and of jobs, tuning jobs and pipelines, in lists and in full."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from trainshed.wire.trainshed_v1.capacity import Waiting
from trainshed.wire.trainshed_v1.record import Record


class LoopLag(Record, frozen=True):
    """Delays of the service's event loop, in seconds."""

    recent_lag: float = 0.0
    longest_lag: float = 0.0
    #: Longest CPU time of a single task on the loop.
    computed: float = 0.0


class Outbox(Record, frozen=True):
    """Notifications that are not yet delivered."""

    #: Targets that labels of jobs may select.
    targets: tuple[str, ...] = ()
    #: Number of undelivered notifications.
    waiting: int = 0
    #: Number of undelivered notifications with a failed attempt.
    failing: int = 0


class Disk(Record, frozen=True):
    """The file system with the service's data."""

    total_bytes: int = 0
    free_bytes: int = 0


class Status(Record, frozen=True):
    """The state of the service, and the defaults for clients."""

    version: str = ""
    #: Start time of the service; "" = unknown.
    start_time: str = ""
    #: The caller.
    principal: str = ""
    apis: tuple[str, ...] = ()
    #: Defaults for requests that do not specify them.
    project: str = ""
    region: str = ""
    bucket: str = ""
    #: Accelerator types of the service's nodes, most frequent first.
    accelerators: tuple[str, ...] = ()
    #: Capabilities of the engine on this machine.
    engine: Mapping[str, Any] = {}
    event_loop: LoopLag = LoopLag()
    #: Only for callers with access to the service's settings.
    disk: Disk | UnsetType = UNSET
    #: Retention period of finished jobs, as in the settings; "" = unlimited.
    retention_jobs: str = ""
    #: Absent if no notifications are configured.
    notifications: Outbox | UnsetType = UNSET


class JobError(Record, frozen=True):
    """The public error of a job."""

    #: Number of the google.rpc code.
    code: int = 0
    message: str = ""
    #: The cause in one sentence; "" = the message starts with it.
    reason: str = ""


class JobSummary(Record, frozen=True):
    """A summary of a job, tuning job or pipeline."""

    #: Full name of the public resource.
    name: str = ""
    #: "vertex" or "ml".
    api: str = ""
    #: "custom", "tuning" or "pipeline".
    kind: str = "custom"
    #: Name of the tuning job or pipeline that created the job; "" = a client created it.
    parent: str = ""
    #: Number of the job's trial; 0 = none.
    trial: int = 0
    uid: str = ""
    project: str = ""
    job_id: str = ""
    display_name: str = ""
    #: Address of the responsible user; "" = unknown.
    user: str = ""
    #: A value of `JobState`, also for pipelines.
    state: str = ""
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    update_time: str = ""
    labels: Mapping[str, str] = {}
    #: Absent without an error. Clients treat null as absent.
    error: JobError | UnsetType | None = UNSET
    #: Current activity. Only if the request includes it.
    glance: "Glance | UnsetType" = UNSET
    #: Absent if unknown, not requested, or in updates of a watched job.
    progress: "Progress | UnsetType" = UNSET
    #: Newest measurements. Only if the request includes them.
    trend: "Trend | UnsetType" = UNSET
    #: The row of the failure table that decided the job's end; "" = not finished.
    rule: str = ""
    #: Requested number of machines and accelerators by type; for a tuning job, of each trial.
    machines: Mapping[str, int] = {}
    accelerators: Mapping[str, int] = {}


class Glance(Record, frozen=True):
    """The reason why a job waits, or its last output line."""

    #: The missing capacity, or another reason for waiting; "" = the job does not wait.
    waits: str = ""
    #: Last output line of the primary replica, limited to 300 characters; "" = the job has finished.
    last_line: str = ""


class Trend(Record, frozen=True):
    """The most informative measure of a job's training: its loss, if available."""

    measure: str = ""
    #: A selection of values, oldest first, including the newest. See `CurvePoint` for values that are no
    #: numbers.
    values: tuple[float | str, ...] = ()


class Progress(Record, frozen=True):
    """The progress of a job."""

    #: Completed part, from 0 to 1; null = unknown.
    done: float | None = None
    #: The progress in words, such as "epoch 3 of 10" or "12 of 40 trials"; "" = unknown.
    text: str = ""
    #: Estimated remaining seconds; null = unknown.
    remaining_seconds: float | None = None
    #: Source of the progress: "output" = the program's output, "trials"; "" = unknown.
    source: str = ""


class JobsOf(Record, frozen=True):
    """The selection of jobs to cancel."""

    #: "" = the service's default project; "-" = all projects.
    project: str = ""
    #: A user's address; "" = all users of the project, which must then be specified.
    user: str = ""


class CancelledJobs(Record, frozen=True):
    """Full names of the jobs that are being cancelled."""

    jobs: tuple[str, ...] = ()


class JobList(Record, frozen=True):
    """A page of jobs, newest first. A page with a token is not the last one, even if it is short."""

    jobs: tuple[JobSummary, ...] = ()
    #: "" = this is the last page.
    next_page_token: str = ""
    #: Number of the project's jobs by state, counted up to 1,000. Only if the request includes counts.
    counts: Mapping[str, int] | UnsetType = UNSET


class Failure(Record, frozen=True):
    """The facts behind a job's public error."""

    #: The row of the failure table that decided the job's end.
    rule: str = ""
    cause: str = ""
    #: The replica that failed; "" = the whole attempt.
    replica: str = ""
    #: Name of the replica in the public API.
    task: str = ""
    #: Exit status of the program; null = none.
    status: int | None = None
    #: The cause in one sentence.
    reason: str = ""
    #: Last output lines of the program.
    tail: str = ""
    #: Advice for the user in a few sentences.
    advice: str = ""


class ReplicaExit(Record, frozen=True):
    """The end of a replica's program."""

    exit_code: int | None = None
    signal: int | None = None
    out_of_memory: bool = False
    #: Whether the service stopped the program.
    stopped: bool = False
    start_time: str = ""
    end_time: str = ""
    #: Number of output lines.
    log_lines: int = 0


class Replica(Record, frozen=True):
    """A replica of a job's current attempt."""

    #: Such as "workerpool0-0".
    id: str = ""
    #: Name of the replica in the public API.
    task: str = ""
    #: A value of `ReplicaState`.
    state: str = ""
    node: str = ""
    #: Number of the incarnation, starting at 1.
    incarnation: int = 1
    start_time: str = ""
    #: Restarts in this attempt, by rule.
    restarts: Mapping[str, int] = {}
    #: The reason why the replica moves to another node; "" = it does not.
    leaving: str = ""
    #: The kind of start: "started warm: ..." with the imported modules, or "started cold: ..." with the
    #: reason; "" = the job does not use warm starts, or the replica has not started.
    began: str = ""
    #: Null while the program has not ended.
    exit: ReplicaExit | None = None


class KeptAutopsy(Record, frozen=True):
    """A summary of the autopsy of a failed replica."""

    replica: str = ""
    task: str = ""
    attempt: int = 0
    expire_time: str = ""


class Tuning(Record, frozen=True):
    """The settings and progress of a hyperparameter search."""

    metric: str = ""
    #: "MAXIMIZE" or "MINIMIZE".
    goal: str = ""
    algorithm: str = ""
    max_trials: int = 0
    parallel_trials: int = 0
    first_trial: int = 1
    #: Number of replicas of each trial's job.
    replicas: int = 1
    #: Number of trials by result.
    succeeded: int = 0
    infeasible: int = 0
    #: Number of infeasible trials that count as failures of the job.
    failed: int = 0
    running: int = 0
    #: Number of the current best trial; 0 = none.
    best: int = 0
    #: Null = there is no best trial yet.
    best_value: float | None = None
    #: Whether all possible trials exist.
    exhausted: bool = False
    #: The rule for stopping trials early: "median"; "" = none.
    stopping: str = ""


class Trial(Record, frozen=True):
    """A trial of a tuning job."""

    number: int = 0
    state: str = ""
    parameters: Mapping[str, Any] = {}
    #: Objective in the final measurement; null = not measured yet.
    value: float | None = None
    #: Step of the final measurement; 0 = not measured yet.
    step: int = 0
    #: All metrics in the final measurement.
    metrics: Mapping[str, float] = {}
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    #: Name of the trial's job.
    job: str = ""
    #: State of the trial's job; "" = it was deleted.
    job_state: str = ""
    stopped_early: bool = False
    #: The reason why the trial is infeasible or is being stopped.
    reason: str = ""
    #: `[step, value]` of the objective: at most 60 points, including the first and the last.
    curve: tuple[tuple[int, float], ...] = ()


class OutlookAxis(Record, frozen=True):
    """The positions of one parameter in an outlook."""

    name: str = ""
    values: tuple[float | int | str, ...] = ()
    is_log: bool = False


class Outlook(Record, frozen=True):
    """The prediction of a search's model for its first metric, over one or two parameters."""

    #: The reason why no model is available; "" = a model is available.
    reason: str = ""
    metric: str = ""
    #: Whether larger values are better.
    is_maximized: bool = False
    #: Number of the best trial, and its other parameters. They are constant in the outlook.
    best: int = 0
    others: Mapping[str, float | int | str] = {}
    axes: tuple[OutlookAxis, ...] = ()
    #: Mean, and bounds one standard deviation below and above it. The second axis varies fastest.
    expected: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    #: Measured trials: the values of the axes' parameters, then the measurement.
    points: tuple[tuple[float | int | str, ...], ...] = ()


class Pipeline(Record, frozen=True):
    """The details of a training pipeline."""

    #: Type of the training.
    task: str = ""
    #: Name of the pipeline's job.
    job: str = ""
    #: State of the pipeline's job; "" = it was deleted.
    job_state: str = ""
    #: Name of the resulting model version; "" = none yet.
    model: str = ""


class JobDescription(JobSummary, frozen=True):
    """All current facts of a job, tuning job or pipeline."""

    #: The reason why the job waits for capacity; null = it has capacity.
    waiting: Waiting | None = None
    #: The same reason, or other reasons why the job does not run yet, as texts.
    waits: tuple[str, ...] = ()
    failure: Failure | None = None
    #: Differences between the requested and the actual runtime, with remedies, as texts.
    substitutions: tuple[str, ...] = ()
    #: Number of the current attempt. Only for a job.
    attempt: int | UnsetType = UNSET
    #: Number of retries by rule. Only for a job.
    retries: Mapping[str, int] | UnsetType = UNSET
    #: Only for a job.
    replicas: tuple[Replica, ...] | UnsetType = UNSET
    #: Autopsies of failed replicas. Only for a job.
    autopsies: tuple[KeptAutopsy, ...] | UnsetType = UNSET
    #: Links to shells by `task`, while the job runs and if it enables them. Only for a job.
    web_access_uris: Mapping[str, str] | UnsetType = UNSET
    #: Addresses of the job's web pages by name, for users who are signed in to the console. Only for a job.
    pages: Mapping[str, str] | UnsetType = UNSET
    #: Link to TensorBoard, if event files exist. Absent in updates of a watched job.
    tensorboard_uri: str | UnsetType = UNSET
    #: Warnings of the replicas, without duplicates, about files outside of buckets, a full disk, or ranks.
    #: Empty in updates of a watched job.
    warnings: tuple[str, ...] = ()
    #: Only for a tuning job.
    tuning: Tuning | UnsetType = UNSET
    #: Trials, sorted by number. Only for a tuning job.
    trials: tuple[Trial, ...] | UnsetType = UNSET
    #: The submitting user; "" = unknown, or in updates of a watched job.
    creator: str = ""
    #: Only for a pipeline.
    pipeline: Pipeline | UnsetType = UNSET
    #: The pipeline's job, without its resource; null = it was deleted. Only for a pipeline.
    child: "JobDescription | UnsetType | None" = UNSET
    #: The public resource. Absent in `child`, and in updates of a watched job.
    resource: Mapping[str, Any] | UnsetType = UNSET


class ReplicaChoice(Record, frozen=True):
    """The selection of a replica, and of a port or an autopsy."""

    #: As for a drill; "" = the primary replica.
    replica: str = ""
    #: Whether to use the autopsy of the failed replica instead of the running replica.
    autopsy: bool = False
    #: Number of the attempt; 0 = the newest.
    attempt: int = 0
    #: A port by number, or by the name of one of the job's pages; "" = a shell.
    port: str = ""


class ShellTicket(Record, frozen=True):
    """A ticket for one shell or one connection to a port. It is valid once, within a minute."""

    token: str = ""
    expire_time: str = ""
    #: Path of the WebSocket.
    path: str = ""
    #: URI of a page for a browser; "" = pages of jobs have no host names on this service.
    uri: str = ""
    job: str = ""
    replica: str = ""
    task: str = ""
    attempt: int = 0


class ViewRequest(Record, frozen=True):
    """The contents of a view."""

    #: Other jobs, by name, ID or UID, to compare with the job in the path.
    others: tuple[str, ...] = ()


class ViewLink(Record, frozen=True):
    """A link to TensorBoard for one or more jobs."""

    #: The page for a browser. All users with this link can see the jobs until they are deleted.
    uri: str = ""
    #: The values that the page sends to open the view.
    view: str = ""
    key: str = ""
    #: Directories with the event files.
    directories: tuple[str, ...] = ()
    #: Whether event files exist.
    has_files: bool = False
