"""The `hyperparameters` of an `ml` v1 training job (spec/tuning#parameters, facts/tuning#ml)."""

from trainshed.core.job.spec import JobSpec
from trainshed.core.requests import Section
from trainshed.core.specs import syntax
from trainshed.core.specs.study import read_algorithm, tag_fault
from trainshed.core.specs.study_parameters import ML_JOB, read_parameters
from trainshed.core.specs.tuning import Counts, check_counts
from trainshed.core.study.spec import Goal, MedianStopping, Metric, StudySpec
from trainshed.core.tuning.records import TuningSpec

DEFAULT_TAG = "training/hptuning/metric"


def read_study(training: Section) -> StudySpec:
    """What is searched and measured. What is wrong is reported to the section's faults; the study of a faulty
    request is of no use."""
    given = training.section("hyperparameters")
    goal = given.enum("goal") or Goal.MAXIMIZE
    if goal not in tuple(Goal):
        given.fault("goal", f"{goal!r} is not one of {', '.join(Goal)}.")
        goal = Goal.MAXIMIZE
    tag = given.text("hyperparameterMetricTag") or DEFAULT_TAG
    if fault := tag_fault(tag) or syntax.string_fault(tag):
        given.fault("hyperparameterMetricTag", fault)
    parameters = read_parameters(given, "params", ML_JOB)
    return StudySpec(
        parameters=parameters,
        metrics=(Metric(tag, Goal(goal)),),
        algorithm=read_algorithm(given, parameters),
        median_stopping=MedianStopping() if given.flag("enableTrialEarlyStopping") else None,
    )


def read_counts(training: Section, *, max_trials: int) -> Counts:
    """How many trials; those left out are 1, and 1, and the service's decision."""
    given = training.section("hyperparameters")
    counts = Counts(
        most=given.integer("maxTrials") or 1,
        parallel=given.integer("maxParallelTrials") or 1,
        failed=given.integer("maxFailedTrials"),
    )
    check_counts(
        given,
        counts,
        ("maxTrials", "maxParallelTrials", "maxFailedTrials"),
        max_trials=max_trials,
    )
    return counts


def read_resumed(training: Section, job_id: str) -> str:
    """Id of the job whose trials are this one's past, "" for none. Whether it exists is for the API to
    say."""
    given = training.section("hyperparameters")
    resumed = given.text("resumePreviousJobId")
    if not resumed:
        return ""
    if fault := syntax.job_id_fault(resumed):
        given.fault("resumePreviousJobId", fault)
    elif resumed == job_id:
        given.fault("resumePreviousJobId", "A job cannot go on from itself; name an earlier one.")
    return resumed


def tuning_spec(study: StudySpec, counts: Counts, trial: JobSpec) -> TuningSpec:
    """`trial`: what each trial runs."""
    return TuningSpec(study, trial, counts.most, counts.parallel, counts.failed)
