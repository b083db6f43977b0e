"""Records of the service's status, and of jobs, tuning jobs and pipelines in lists and descriptions."""

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, UnsetType

from trainshed.wire.trainshed_v1.capacity import Waiting
from trainshed.wire.trainshed_v1.record import Record


class LoopLag(Record, frozen=True):
    """Delays of the service's event loop in seconds."""

    recent_lag: float = 0.0
    longest_lag: float = 0.0
    #: Longest CPU time of one task on the event loop.
    computed: float = 0.0


class Outbox(Record, frozen=True):
    """Notifications that were not delivered yet."""

    #: Targets that labels of jobs may select.
    targets: tuple[str, ...] = ()
    #: Number of undelivered notifications.
    waiting: int = 0
    #: Number of undelivered notifications for which an attempt has failed.
    failing: int = 0


class Disk(Record, frozen=True):
    """The file system that contains the service's data."""

    total_bytes: int = 0
    free_bytes: int = 0


class Status(Record, frozen=True):
    """The state of the service, and the defaults for clients."""

    version: str = ""
    #: Start time of the service; "" = unknown.
    start_time: str = ""
    #: E-mail address of the caller.
    principal: str = ""
    apis: tuple[str, ...] = ()
    #: Default project, region and bucket, for requests that do not specify their own.
    project: str = ""
    region: str = ""
    bucket: str = ""
    #: Accelerator types of the service's nodes, most frequent first.
    accelerators: tuple[str, ...] = ()
    #: Capabilities of the engine on this machine.
    engine: Mapping[str, Any] = {}
    event_loop: LoopLag = LoopLag()
    #: The file system that contains the service's data. Present only for callers with access to the service's
    #: settings.
    disk: Disk | UnsetType = UNSET
    #: Retention period of finished jobs, as in the settings; "" = unlimited.
    retention_jobs: str = ""
    #: Notifications that were not delivered yet. Absent if notifications are not configured.
    notifications: Outbox | UnsetType = UNSET


class JobError(Record, frozen=True):
    """The public error of a job."""

    #: Number of the google.rpc code.
    code: int = 0
    message: str = ""
    #: The cause in one sentence; "" = the message starts with the cause.
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
    #: Number of the job's trial; 0 = the job does not run a trial.
    trial: int = 0
    uid: str = ""
    project: str = ""
    job_id: str = ""
    display_name: str = ""
    #: Address of the user who is responsible for the job; "" = unknown.
    user: str = ""
    #: A value of `JobState`, also for pipelines.
    state: str = ""
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    update_time: str = ""
    labels: Mapping[str, str] = {}
    #: Absent if the job has no error. Clients treat null as absent.
    error: JobError | UnsetType | None = UNSET
    #: Current activity of the job. Present only if requested.
    glance: "Glance | UnsetType" = UNSET
    #: Absent if the progress is unknown or was not requested, and in updates of a watched job.
    progress: "Progress | UnsetType" = UNSET
    #: Newest measurements. Present only if requested.
    trend: "Trend | UnsetType" = UNSET
    #: Name of the row of the failure table that decided the end of the job; "" = not finished.
    rule: str = ""
    #: Number of requested machines and accelerators by type; for a tuning job, those of each trial.
    machines: Mapping[str, int] = {}
    accelerators: Mapping[str, int] = {}


class Glance(Record, frozen=True):
    """The reason why a job waits, or its last output line."""

    #: The reason for waiting, such as the missing capacity; "" = the job does not wait.
    waits: str = ""
    #: Last output line of the primary replica, limited to 300 characters; "" = the job has finished.
    last_line: str = ""


class Trend(Record, frozen=True):
    """The most informative metric of a job's training: its loss, if available."""

    measure: str = ""
    #: Selected values, oldest first. The newest value is included. `CurvePoint` describes values that are not
    #: finite numbers.
    values: tuple[float | str, ...] = ()


class Progress(Record, frozen=True):
    """The progress of a job."""

    #: Completed part, from 0 to 1; null = unknown.
    done: float | None = None
    #: The progress in words, such as "epoch 3 of 10" or "12 of 40 trials"; "" = unknown.
    text: str = ""
    #: Estimated remaining seconds; null = unknown.
    remaining_seconds: float | None = None
    #: Source of the progress: "output" = the program's output, "trials" = the trials of a tuning job, "" =
    #: unknown.
    source: str = ""


class JobsOf(Record, frozen=True):
    """Selects the jobs to cancel."""

    #: Project of the jobs; "" = the service's default project; "-" = all projects.
    project: str = ""
    #: Address of the user whose jobs are cancelled; "" = the jobs of all users. If it is "", `project` must
    #: be the ID of a project.
    user: str = ""


class CancelledJobs(Record, frozen=True):
    """Full names of the jobs for which a cancellation was requested."""

    jobs: tuple[str, ...] = ()


class JobList(Record, frozen=True):
    """A page of jobs, newest first. A page with a token is not the last page, even if the page is short."""

    jobs: tuple[JobSummary, ...] = ()
    #: "" = this is the last page.
    next_page_token: str = ""
    #: Number of the project's jobs by state, counted up to 1,000. Present only if requested.
    counts: Mapping[str, int] | UnsetType = UNSET


class Failure(Record, frozen=True):
    """The facts about a job's error."""

    #: Name of the row of the failure table that decided the end of the job.
    rule: str = ""
    cause: str = ""
    #: ID of the replica that failed; "" = the whole attempt failed.
    replica: str = ""
    #: Name of the replica in the public API.
    task: str = ""
    #: Exit status of the program; null = no exit status.
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

    #: ID of the replica, such as "workerpool0-0".
    id: str = ""
    #: Name of the replica in the public API.
    task: str = ""
    #: A value of `ReplicaState`.
    state: str = ""
    node: str = ""
    #: Number of the replica's run (incarnation) within the attempt, starting at 1.
    incarnation: int = 1
    start_time: str = ""
    #: Number of restarts in this attempt, by rule.
    restarts: Mapping[str, int] = {}
    #: The reason why the replica is moving to another node; "" = it is not moving.
    leaving: str = ""
    #: How the program started: "started warm: ..." with the imported modules, or "started cold: ..." with the
    #: reason; "" = the job does not use warm starts, or the replica has not started.
    began: str = ""
    #: Null until the program has ended.
    exit: ReplicaExit | None = None


class KeptAutopsy(Record, frozen=True):
    """A summary of an autopsy, which contains the files of a failed replica for a limited time."""

    replica: str = ""
    task: str = ""
    attempt: int = 0
    expire_time: str = ""


class Tuning(Record, frozen=True):
    """Settings and progress of a hyperparameter search."""

    metric: str = ""
    #: "MAXIMIZE" or "MINIMIZE".
    goal: str = ""
    algorithm: str = ""
    max_trials: int = 0
    parallel_trials: int = 0
    first_trial: int = 1
    #: Number of replicas in the job of each trial.
    replicas: int = 1
    #: Number of successful trials.
    succeeded: int = 0
    infeasible: int = 0
    #: Number of infeasible trials that count as failures of the job.
    failed: int = 0
    running: int = 0
    #: Number that identifies the best trial so far; 0 = none yet.
    best: int = 0
    #: Objective of the best trial; null = none yet.
    best_value: float | None = None
    #: Whether the search cannot create any more trials.
    exhausted: bool = False
    #: The rule for stopping trials early: "median"; "" = none.
    stopping: str = ""


class Trial(Record, frozen=True):
    """A trial of a tuning job."""

    number: int = 0
    state: str = ""
    parameters: Mapping[str, Any] = {}
    #: Objective in the final measurement; null = no final measurement yet.
    value: float | None = None
    #: Step of the final measurement; 0 = no final measurement yet.
    step: int = 0
    #: All metrics in the final measurement.
    metrics: Mapping[str, float] = {}
    create_time: str = ""
    start_time: str = ""
    end_time: str = ""
    #: Name of the trial's job.
    job: str = ""
    #: State of the trial's job; "" = the job was deleted.
    job_state: str = ""
    stopped_early: bool = False
    #: The reason why the trial is infeasible or is being stopped early.
    reason: str = ""
    #: `[step, value]` of the objective: at most 60 points, including the first and the last.
    curve: tuple[tuple[int, float], ...] = ()


class OutlookAxis(Record, frozen=True):
    """The positions of one parameter in an outlook."""

    name: str = ""
    values: tuple[float | int | str, ...] = ()
    is_log: bool = False


class Outlook(Record, frozen=True):
    """The prediction that a search's model makes for the first metric, over one or two parameters."""

    #: The reason why no model is available; "" = a model is available.
    reason: str = ""
    metric: str = ""
    #: Whether larger values of the metric are better.
    is_maximized: bool = False
    #: Number that identifies the best trial, and values of its other parameters. The prediction is made for
    #: these values.
    best: int = 0
    others: Mapping[str, float | int | str] = {}
    axes: tuple[OutlookAxis, ...] = ()
    #: Predicted mean at each position, and bounds one standard deviation below and above the mean. The index
    #: of the second axis varies fastest.
    expected: tuple[float, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    #: Measured trials. Each contains the values of the axes' parameters, then the measurement.
    points: tuple[tuple[float | int | str, ...], ...] = ()


class Pipeline(Record, frozen=True):
    """The details of a training pipeline."""

    #: Type of the training task.
    task: str = ""
    #: Name of the pipeline's job.
    job: str = ""
    #: State of the pipeline's job; "" = the job was deleted.
    job_state: str = ""
    #: Name of the resulting model version; "" = not created yet.
    model: str = ""


class PipelineJob(Record, frozen=True):
    """The details of a pipeline job."""

    #: Name of the compiled pipeline.
    template: str = ""
    #: The `gs://` directory below which the tasks write.
    root: str = ""
    #: Name of the schedule that started the run; "" = a user started it.
    schedule: str = ""
    #: Numbers of tasks by state.
    tasks: Mapping[str, int] = {}


class JobDescription(JobSummary, frozen=True):
    """Everything that the service currently knows about a job, tuning job or pipeline."""

    #: The reason why the job waits for capacity; null = it has capacity.
    waiting: Waiting | None = None
    #: Texts with all reasons why the job is not running yet.
    waits: tuple[str, ...] = ()
    failure: Failure | None = None
    #: Texts with the differences between the requested and the actual runtime, and how to avoid them.
    substitutions: tuple[str, ...] = ()
    #: Number of the current attempt. Only for a job.
    attempt: int | UnsetType = UNSET
    #: Number of retries, by rule. Only for a job.
    retries: Mapping[str, int] | UnsetType = UNSET
    #: Replicas of the current attempt. Only for a job.
    replicas: tuple[Replica, ...] | UnsetType = UNSET
    #: Autopsies (kept files) of failed replicas. Only for a job.
    autopsies: tuple[KeptAutopsy, ...] | UnsetType = UNSET
    #: Links to shells by `task`. Present while the job runs, if the job enables shells. Only for a job.
    web_access_uris: Mapping[str, str] | UnsetType = UNSET
    #: Addresses of the job's web pages by name, for users who have signed in to the console. Only for a job.
    pages: Mapping[str, str] | UnsetType = UNSET
    #: Link to TensorBoard. Absent if no event files exist, and in updates of a watched job.
    tensorboard_uri: str | UnsetType = UNSET
    #: Warnings of the replicas without duplicates: files outside of buckets, a full disk, or wrong ranks.
    #: Empty in updates of a watched job.
    warnings: tuple[str, ...] = ()
    #: Settings and progress of the hyperparameter search. Only for a tuning job.
    tuning: Tuning | UnsetType = UNSET
    #: Trials, sorted by number. Only for a tuning job.
    trials: tuple[Trial, ...] | UnsetType = UNSET
    #: The user who submitted the job; "" = unknown. Empty in updates of a watched job.
    creator: str = ""
    #: Details of the training pipeline. Only for a pipeline.
    pipeline: Pipeline | UnsetType = UNSET
    #: Details of the run. Only for a pipeline job.
    pipeline_job: PipelineJob | UnsetType = UNSET
    #: Description of the pipeline's job, without its resource; null = the job was deleted. Only for a
    #: pipeline.
    child: "JobDescription | UnsetType | None" = UNSET
    #: The job, tuning job or pipeline as a resource of the public API. Absent in `child`, and in updates of a
    #: watched job.
    resource: Mapping[str, Any] | UnsetType = UNSET


class ReplicaChoice(Record, frozen=True):
    """Selects a replica, and optionally a port or the kept files (autopsy) of the replica."""

    #: Name of the replica, in a form that `DrillOrder` accepts; "" = the primary replica.
    replica: str = ""
    #: Whether to open the kept files (autopsy) of a failed replica instead of a running replica.
    autopsy: bool = False
    #: Number of the attempt; 0 = the newest.
    attempt: int = 0
    #: Number of a port, or name of one of the job's web pages; "" = a shell.
    port: str = ""


class ShellTicket(Record, frozen=True):
    """A ticket for one shell or one connection to a port. It can be used once, within one minute."""

    token: str = ""
    expire_time: str = ""
    #: Path of the WebSocket.
    path: str = ""
    #: URI of the page to open in a browser; "" = the service has no host names for pages of jobs.
    uri: str = ""
    job: str = ""
    replica: str = ""
    task: str = ""
    attempt: int = 0


class ViewRequest(Record, frozen=True):
    """The jobs of a TensorBoard view."""

    #: Additional jobs by name, ID or UID, to compare with the job in the path.
    others: tuple[str, ...] = ()


class ViewLink(Record, frozen=True):
    """A link to a TensorBoard view of one or more jobs."""

    #: URI of the page to open in a browser. Every user with this link can see the jobs until they are
    #: deleted.
    uri: str = ""
    #: The values that the page sends to the service to open the view.
    view: str = ""
    key: str = ""
    #: Directories with the event files.
    directories: tuple[str, ...] = ()
    #: Whether event files exist.
    has_files: bool = False
