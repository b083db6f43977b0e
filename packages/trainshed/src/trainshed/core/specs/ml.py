"""An `ml` v1 training job in public JSON becomes a `JobSpec`, or a list of everything wrong with it.

Rules: spec/submit#refusals, facts/resources#ml, facts/lifecycle#scheduling, facts/packaging#runtime-versions,
facts/limits, facts/tuning#ml. Field paths are those the public service was seen to use: snake_case from
`trainingInput` down (`runtime_version`), the job's own fields likewise.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.catalog.regions import regions
from trainshed.core.errors import closest
from trainshed.core.job import DEFAULT_TIMEOUT, JobSpec, Scheduling, WorkerPool
from trainshed.core.names import ML_ROLES, Api
from trainshed.core.requests import Faults, Section
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.specs import syntax, warnings
from trainshed.core.specs.ml_pools import ROLES, Hardware, Programs, read_hardware, read_programs
from trainshed.core.specs.study import read_algorithm, tag_fault
from trainshed.core.specs.study_parameters import ML_JOB, read_parameters
from trainshed.core.specs.tuning import Counts, check_counts
from trainshed.core.study.spec import Goal, MedianStopping, Metric, StudySpec
from trainshed.core.tuning.records import TuningSpec

MIN_WAIT = 1800 * 10**9
"""Nanoseconds; the shortest maxWaitTime (facts/lifecycle#scheduling)."""
MAX_PRIORITY = 1000

WITHOUT_EFFECT = {
    "network": "the job runs in the network of its host",
    "encryptionConfig": "the job's files are stored without that key",
}
"""Fields of the training input that are not served, and what happens instead."""


class ParsedMlJob(Struct, frozen=True):
    """A valid training job."""

    spec: JobSpec
    job_id: str
    #: In the order given.
    labels: tuple[tuple[str, str], ...]
    #: The tuning of a job with hyperparameters, whose time limits are the whole job's; None = it has none.
    tuning: TuningSpec | None = None


def parse_job(
    public: Mapping[str, Any], *, runtimes: RuntimeCatalog, max_trials: int = 0
) -> ParsedMlJob:
    """Read a Job.

    `public` is its JSON: camelCase keys, enum names, int64 as strings, unset fields absent, as the package
    `wire` hands it on. `max_trials` is the limit of one tuning job, 0 = none. Raise InvalidRequest, which
    lists every violation, if there is one.
    """
    faults = Faults()
    job = Section(public, "", faults)
    if fault := syntax.job_id_fault(job.text("jobId")):
        job.fault("jobId", fault)
    labels = syntax.read_labels(job)
    if job.has("predictionInput"):
        job.fault("predictionInput", "Batch prediction is not served; give training_input.")
    if not job.has("trainingInput"):
        job.fault("trainingInput", "The training input must be set.")
        faults.refuse()
    # The service names a training job's fields without the message they are in (facts/limits#error-texts).
    training = Section(job.section("trainingInput").values, "", faults)
    hardware = read_hardware(training)
    programs = read_programs(training, [hw.role for hw in hardware], runtimes)
    scheduling = _read_scheduling(training.section("scheduling"))
    _check_rest(training)
    job_json = msgspec.json.encode(training.values).decode()
    if fault := syntax.cluster_size_fault(job_json, sum(hw.count for hw in hardware)):
        training.fault("scaleTier", fault)
    tunes = training.has("hyperparameters")
    study = read_study(training) if tunes else None
    counts = read_counts(training, max_trials=max_trials)
    check_resumed(training, job.text("jobId"))
    faults.refuse()
    spec = _job_spec(training, hardware, programs, scheduling, job_json)
    if study is None:
        return ParsedMlJob(spec, job.text("jobId"), labels)
    trial = replace(spec, metric_tag=study.metrics[0].id)
    return ParsedMlJob(spec, job.text("jobId"), labels, tuning_spec(study, counts, trial))


def _job_spec(
    training: Section,
    hardware: tuple[Hardware, ...],
    programs: Programs,
    scheduling: Scheduling,
    job_json: str,
) -> JobSpec:
    pools = tuple(
        WorkerPool(
            position=hw.role.position,
            replica_count=hw.count,
            machine=hw.machine,
            program=programs.by_position[hw.role.position],
            disk=hw.disk,
        )
        for hw in hardware
    )
    return JobSpec(
        api=Api.ML,
        region=training.text("region"),
        pools=pools,
        scheduling=scheduling,
        job_json=job_json,
        service_account=training.text("serviceAccount"),
        job_dir=training.text("jobDir"),
        runtime_version=programs.runtime_version,
        use_chief_in_tf_config=training.flag("useChiefInTfConfig"),
        warnings=(*_ignored(training, hardware), *warnings.pool_warnings(pools)),
    )


def _read_scheduling(section: Section) -> Scheduling:
    wait = section.duration("maxWaitTime")
    if wait is not None and not MIN_WAIT <= wait <= syntax.MAX_DURATION:
        section.fault(
            "maxWaitTime", "The longest wait must be at least 1800s; leave it out for no limit."
        )
    running = section.duration("maxRunningTime")
    if running is None:
        running = DEFAULT_TIMEOUT
    elif not 0 < running <= syntax.MAX_DURATION:
        section.fault("maxRunningTime", "The running time must be positive and at most 100 years.")
    priority = section.integer("priority")
    if not 0 <= priority <= MAX_PRIORITY:
        section.fault("priority", f"The priority must be 0 to {MAX_PRIORITY}, not {priority}.")
    return Scheduling(timeout=running, max_wait=wait, priority=priority)


def _check_rest(training: Section) -> None:
    region = training.text("region")
    known = regions(Api.ML)
    if not region:
        training.fault("region", "The region must be set, for example us-central1.")
    elif region not in known:
        training.fault(
            "region",
            f"{region!r} is not a region of AI Platform Training.{closest(region, known)} "
            f"Choose one of {', '.join(known)}.",
        )
    job_dir = training.text("jobDir")
    if job_dir and (fault := syntax.bucket_path_fault(job_dir)):
        training.fault("jobDir", fault)
    if fault := syntax.service_account_fault(training.text("serviceAccount")):
        training.fault("serviceAccount", fault)


def _ignored(training: Section, hardware: tuple[Hardware, ...]) -> tuple[str, ...]:
    """Return warnings about fields that have no effect."""
    hyperparameters = [
        f"{training.at(name)} is not served here: {instead}."
        for name, instead in WITHOUT_EFFECT.items()
        if training.is_set(name)
    ]
    if training.flag("useChiefInTfConfig") and training.text("runtimeVersion"):
        hyperparameters.append(
            "use_chief_in_tf_config has no effect with a runtime version, which says what TF_CONFIG calls "
            "the primary: chief from 2.1 on, master before."
        )
    running = {hw.role.position for hw in hardware}
    for role in ROLES:
        config = training.section(role.config_field)
        if config.is_set("tpuTfVersion"):
            hyperparameters.append(
                f"{config.at('tpuTfVersion')} is not served here: there are no TPUs, and programs have the "
                "TensorFlow of their runtime or image."
            )
        unused = [name for name in (role.config_field, role.type_field) if training.is_set(name)]
        if unused and role.position not in running:
            names = " and ".join(map(training.at, unused))
            hyperparameters.append(
                f"{names} has no effect: the job has no {ML_ROLES[role.position]} replicas."
            )
    return tuple(hyperparameters)


DEFAULT_TAG = "training/hptuning/metric"


def read_study(training: Section) -> StudySpec:
    """Read what is searched and measured. What is wrong is reported to the section's faults; the study of a
    faulty request is of no use."""
    search = training.section("hyperparameters")
    goal = search.enum("goal") or Goal.MAXIMIZE
    if goal not in tuple(Goal):
        search.fault("goal", f"{goal!r} is not one of {', '.join(Goal)}.")
        goal = Goal.MAXIMIZE
    tag = search.text("hyperparameterMetricTag") or DEFAULT_TAG
    if fault := tag_fault(tag) or syntax.string_fault(tag):
        search.fault("hyperparameterMetricTag", fault)
    parameters = read_parameters(search, "params", ML_JOB)
    return StudySpec(
        parameters=parameters,
        metrics=(Metric(tag, Goal(goal)),),
        algorithm=read_algorithm(search, parameters),
        median_stopping=MedianStopping() if search.flag("enableTrialEarlyStopping") else None,
    )


def read_counts(training: Section, *, max_trials: int) -> Counts:
    """Read how many trials there are. Left out, there is 1 in all and 1 at a time, and the service decides
    how many may fail."""
    section = training.section("hyperparameters")
    counts = Counts(
        most=section.integer("maxTrials") or 1,
        parallel=section.integer("maxParallelTrials") or 1,
        failed=section.integer("maxFailedTrials"),
    )
    check_counts(
        section,
        counts,
        ("maxTrials", "maxParallelTrials", "maxFailedTrials"),
        max_trials=max_trials,
    )
    return counts


def check_resumed(training: Section, job_id: str) -> None:
    """Report what is wrong with the id of the job whose trials this one continues from. Whether that job
    exists is for the API to say."""
    section = training.section("hyperparameters")
    resumed = section.text("resumePreviousJobId")
    if not resumed:
        return
    if fault := syntax.job_id_fault(resumed):
        section.fault("resumePreviousJobId", fault)
    elif resumed == job_id:
        section.fault("resumePreviousJobId", "A job cannot go on from itself; name an earlier one.")


def tuning_spec(study: StudySpec, counts: Counts, trial: JobSpec) -> TuningSpec:
    """Make the spec of a tuning job. `trial`: the job that each trial runs."""
    return TuningSpec(study, trial, counts.most, counts.parallel, counts.failed)
