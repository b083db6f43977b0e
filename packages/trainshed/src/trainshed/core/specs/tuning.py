"""A Vertex HyperparameterTuningJob in public JSON becomes a `TuningSpec`, or a list of everything wrong with
it.

Rules: spec/tuning, facts/resources#tuning-jobs, facts/tuning#vertex, facts/tuning#failing-trials.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from trainshed.core.job import JobDraft
from trainshed.core.requests import Faults, Section
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.specs import syntax
from trainshed.core.specs.study import read_study_spec
from trainshed.core.specs.vertex import read_job_spec, unserved, with_warnings
from trainshed.core.tuning.records import TuningSpec


class Counts(Struct, frozen=True):
    """How many trials a tuning job has in all and at once, and how many may fail (0 = the service
    decides)."""

    most: int
    parallel: int
    failed: int


def parse_tuning_job(
    public: Mapping[str, Any], *, region: str, runtimes: RuntimeCatalog, max_trials: int
) -> JobDraft[TuningSpec]:
    """Read a HyperparameterTuningJob, given as public JSON.

    `region` is the location of the request and taken as given; `max_trials` is the limit of one job, 0 =
    none. Raise InvalidRequest, which lists every violation, if there is one; field paths are snake_case from
    the job down.
    """
    job = Section(public, "", Faults())
    display_name = syntax.read_display_name(job)
    labels = syntax.read_labels(job)
    spec = read_tuning_spec(job, region=region, runtimes=runtimes, max_trials=max_trials)
    job.faults.refuse()
    trial = with_warnings(spec.trial, *unserved(job))
    return JobDraft(replace(spec, trial=trial), display_name, labels)


def read_tuning_spec(
    section: Section, *, region: str, runtimes: RuntimeCatalog, max_trials: int
) -> TuningSpec:
    """Read the study, the trials' job and the counts of any message that has them. What is wrong is reported
    to the section's faults; the spec of a faulty request is of no use."""
    study = read_study_spec(section.section("studySpec"), for_tuning_job=True)
    trial = read_job_spec(section.section("trialJobSpec"), region, runtimes)
    counts = Counts(
        most=section.integer("maxTrialCount"),
        parallel=section.integer("parallelTrialCount"),
        failed=section.integer("maxFailedTrialCount"),
    )
    check_counts(
        section,
        counts,
        ("maxTrialCount", "parallelTrialCount", "maxFailedTrialCount"),
        max_trials=max_trials,
    )
    return TuningSpec(study, trial, counts.most, counts.parallel, counts.failed)


def check_counts(
    section: Section, counts: Counts, fields: tuple[str, str, str], *, max_trials: int
) -> None:
    """Report what is wrong with the counts, which are in the fields `fields`, in the order of `Counts`."""
    most, parallel, failed = fields
    if counts.most < 1:
        section.fault(most, f"A tuning job needs at least 1 trial, not {counts.most}.")
    elif max_trials and counts.most > max_trials:
        section.fault(
            most,
            f"{counts.most} trials are asked for; at most {max_trials} are allowed, by a setting of "
            "this service.",
        )
    if counts.parallel < 1:
        section.fault(parallel, f"At least 1 trial must run at a time, not {counts.parallel}.")
    elif counts.parallel > counts.most >= 1:
        section.fault(
            parallel,
            f"{counts.parallel} trials at a time are more than the job has: {section.at(most)} is "
            f"{counts.most}.",
        )
    if counts.failed < 0 or counts.failed > counts.most >= 1:
        section.fault(
            failed,
            f"The number must be 0 to {section.at(most)} ({counts.most}), not {counts.failed}; 0 lets "
            "the service decide.",
        )
