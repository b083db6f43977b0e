"""Converts an `ml` v1 training job in public JSON to a `JobSpec`, or to a list of all its errors.

Rules: spec/submit#refusals, facts/resources#ml, facts/lifecycle#scheduling, facts/packaging#runtime-versions,
facts/limits, facts/tuning#ml. Field paths have the observed form of the public service: snake_case without
`trainingInput` (`runtime_version`). Fields of the job itself have the same form.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from trainshed.core.catalog.regions import regions
from trainshed.core.errors import closest
from trainshed.core.job import DEFAULT_TIMEOUT, JobDraft, JobSpec, Scheduling, WorkerPool
from trainshed.core.names import ML_ROLES, Api, normalize_email
from trainshed.core.requests import Faults, Section
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.specs import syntax
from trainshed.core.specs.ml_pools import ROLES, Hardware, read_hardware, read_programs
from trainshed.core.specs.study import read_algorithm, read_goal, tag_fault
from trainshed.core.specs.study_parameters import ML_JOB, read_parameters
from trainshed.core.specs.tuning import read_counts
from trainshed.core.specs.worker_pool import pool_warnings
from trainshed.core.study.spec import MedianStopping, Metric, StudySpec
from trainshed.core.tuning.records import TuningSpec

MIN_WAIT = 1800 * 10**9
"""Minimum maxWaitTime in nanoseconds (facts/lifecycle#scheduling)."""
MAX_PRIORITY = 1000

WITHOUT_EFFECT = {
    "network": "the job uses the network of its host",
    "encryptionConfig": "the job's files are stored without that key",
}
"""Unsupported fields of the training input, and the actual behavior for each."""


def parse_job(
    public: Mapping[str, Any], *, runtimes: RuntimeCatalog, max_trials: int = 0
) -> JobDraft[JobSpec | TuningSpec]:
    """Parse a Job. Its id is also its display name.

    With hyperparameters it is a tuning job, and its time limits apply to the whole tuning job. `public` is
    the job's JSON: camelCase keys, enum names, int64 as strings, unset fields absent, as the package `wire`
    provides it. `max_trials` is the limit of one tuning job, 0 for no limit. Raise InvalidRequest with all
    violations.
    """
    faults = Faults()
    job = Section(public, "", faults)
    job_id = job.text("jobId")
    job.check("jobId", syntax.job_id_fault(job_id))
    labels = syntax.read_labels(job)
    if job.has("predictionInput"):
        job.fault("predictionInput", "Batch prediction is not supported. Set training_input.")
    if not job.has("trainingInput"):
        job.fault("trainingInput", "The training input must be set.")
        faults.refuse()
    # The public service reports fields of a training job without the message that contains them
    # (facts/limits#error-texts).
    training = Section(job.section("trainingInput").values, "", faults)
    hardware = read_hardware(training)
    programs, version = read_programs(training, [hw.role for hw in hardware], runtimes)
    scheduling = _read_scheduling(training.section("scheduling"))
    region = _read_region(training)
    if job_dir := training.text("jobDir"):
        training.check("jobDir", syntax.bucket_path_fault(job_dir))
    account = training.text("serviceAccount")
    training.check("serviceAccount", syntax.service_account_fault(account))
    job_json = msgspec.json.encode(training.values).decode()
    replicas = sum(hw.count for hw in hardware)
    counted = max(hardware, key=lambda hw: hw.count, default=None)
    field = counted.role.count_field if counted else ""
    training.check(field or "scaleTier", syntax.cluster_size_fault(replicas))
    tuning = _read_tuning(training, job_id, max_trials) if training.has("hyperparameters") else None
    faults.refuse()
    pools = tuple(
        WorkerPool(hw.role.position, hw.count, hw.machine, programs[hw.role.position], hw.disk)
        for hw in hardware
    )
    spec = JobSpec(
        api=Api.ML,
        region=region,
        pools=pools,
        scheduling=scheduling,
        job_json=job_json,
        service_account=normalize_email(account) or None,
        job_dir=job_dir or None,
        runtime_version=version,
        use_chief_in_tf_config=training.flag("useChiefInTfConfig"),
        warnings=(
            *_ineffective_fields(training, hardware),
            *pool_warnings(pools),
            *syntax.cluster_size_warnings(job_json, replicas),
        ),
    )
    if tuning is None:
        return JobDraft(spec, job_id, labels)
    study, counts = tuning
    trial = replace(spec, metric_tag=study.metrics[0].id)
    return JobDraft(TuningSpec(study, trial, *counts), job_id, labels)


def _read_scheduling(section: Section) -> Scheduling:
    wait = section.duration("maxWaitTime")
    if wait is not None and not MIN_WAIT <= wait <= syntax.MAX_DURATION:
        section.fault(
            "maxWaitTime", "The maximum wait time must be at least 1800s. Omit the field for no limit."
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


def _read_region(training: Section) -> str:
    region, known = training.text("region"), regions(Api.ML)
    if not region:
        training.fault("region", "The region must be set, for example us-central1.")
    elif region not in known:
        training.fault(
            "region",
            f"{region!r} is not a region of AI Platform Training.{closest(region, known)} "
            f"Choose one of {', '.join(known)}.",
        )
    return region


def _ineffective_fields(training: Section, hardware: tuple[Hardware, ...]) -> tuple[str, ...]:
    """Return warnings about fields without effect."""
    texts = [*syntax.ineffective_fields(training, WITHOUT_EFFECT)]
    if training.flag("useChiefInTfConfig") and training.text("runtimeVersion"):
        texts.append(
            "use_chief_in_tf_config has no effect with a runtime version, which determines "
            "the name of the primary in TF_CONFIG: chief from 2.1 on, master before."
        )
    running = {hw.role.position for hw in hardware}
    for role in ROLES:
        config = training.section(role.config_field)
        texts += syntax.ineffective_fields(config, {"tpuTfVersion": "this service has no TPUs"})
        unused = [name for name in (role.config_field, role.type_field) if training.is_set(name)]
        if unused and role.position not in running:
            names = " and ".join(map(training.path_of, unused))
            texts.append(f"{names} has no effect: the job has no {ML_ROLES[role.position]} replicas.")
    return tuple(texts)


DEFAULT_TAG = "training/hptuning/metric"


def _read_tuning(training: Section, job_id: str, max_trials: int) -> tuple[StudySpec, tuple[int, int, int]]:
    """Parse the parameters, the metric and the numbers of trials (default: 1 in total, and 1 at a time).
    Errors are added to the section's faults. The API checks whether the previous job (`resumePreviousJobId`)
    exists."""
    search = training.section("hyperparameters")
    tag = search.text("hyperparameterMetricTag") or DEFAULT_TAG
    search.check("hyperparameterMetricTag", tag_fault(tag) or syntax.string_fault(tag))
    parameters = read_parameters(search, "params", ML_JOB)
    study = StudySpec(
        parameters=parameters,
        metrics=(Metric(tag, read_goal(search)),),
        algorithm=read_algorithm(search, parameters),
        median_stopping=MedianStopping() if search.flag("enableTrialEarlyStopping") else None,
    )
    if resumed := search.text("resumePreviousJobId"):
        search.check("resumePreviousJobId", syntax.job_id_fault(resumed))
        if resumed == job_id:
            search.fault("resumePreviousJobId", "A job cannot continue from itself. Use an earlier job.")
    fields = ("maxTrials", "maxParallelTrials", "maxFailedTrials")
    return study, read_counts(search, fields, 1, max_trials=max_trials)
