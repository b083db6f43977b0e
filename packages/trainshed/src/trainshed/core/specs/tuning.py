"""Converts a Vertex HyperparameterTuningJob in public JSON to a `TuningSpec`, or to a list of all its errors.

Rules: spec/tuning, facts/resources#tuning-jobs, facts/tuning#vertex, facts/tuning#failing-trials.
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from trainshed.core.job import JobDraft
from trainshed.core.requests import Faults, Section
from trainshed.core.runtime import RuntimeCatalog
from trainshed.core.specs import syntax
from trainshed.core.specs.study import read_study_spec
from trainshed.core.specs.vertex import read_job_spec, unsupported_fields, with_warnings
from trainshed.core.tuning.records import TuningSpec


def parse_tuning_job(
    public: Mapping[str, Any], *, region: str, runtimes: RuntimeCatalog, max_trials: int
) -> JobDraft[TuningSpec]:
    """Parse a HyperparameterTuningJob in public JSON.

    `region` is the location of the request and is not validated. `max_trials` is the limit of one job, 0 for
    no limit. Raise InvalidRequest with all violations. Their field paths are in snake_case, relative to the
    job.
    """
    job = Section(public, "", Faults())
    display_name = syntax.read_display_name(job)
    labels = syntax.read_labels(job)
    spec = read_tuning_spec(job, region=region, runtimes=runtimes, max_trials=max_trials)
    job.faults.refuse()
    trial = with_warnings(spec.trial, *unsupported_fields(job))
    return JobDraft(replace(spec, trial=trial), display_name, labels)


def read_tuning_spec(
    section: Section, *, region: str, runtimes: RuntimeCatalog, max_trials: int
) -> TuningSpec:
    """Parse the study, the trials' job and the counts in a message. Errors are added to the section's faults.
    The spec of a faulty request is not usable."""
    study = read_study_spec(section.section("studySpec"), for_tuning_job=True)
    trial = read_job_spec(section.section("trialJobSpec"), region, runtimes)
    fields = ("maxTrialCount", "parallelTrialCount", "maxFailedTrialCount")
    return TuningSpec(study, trial, *read_counts(section, fields, 0, max_trials=max_trials))


def read_counts(
    section: Section, fields: tuple[str, str, str], default: int, *, max_trials: int
) -> tuple[int, int, int]:
    """Parse three fields: the total number of trials, the number of parallel trials (`default` if unset), and
    the number of trials that may fail (0: the service decides)."""
    most, parallel = (section.integer(field) or default for field in fields[:2])
    failed = section.integer(fields[2])
    if most < 1:
        section.fault(fields[0], f"A tuning job needs at least 1 trial, not {most}.")
    elif max_trials and most > max_trials:
        section.fault(
            fields[0],
            f"The job requests {most} trials; at most {max_trials} are allowed by a setting of this service.",
        )
    if parallel < 1:
        section.fault(fields[1], f"At least 1 trial must run at a time, not {parallel}.")
    elif parallel > most >= 1:
        section.fault(
            fields[1],
            f"{parallel} parallel trials are more than the job has: {section.path_of(fields[0])} is {most}.",
        )
    if failed < 0 or failed > most >= 1:
        section.fault(
            fields[2],
            f"The number must be 0 to {section.path_of(fields[0])} ({most}), not {failed}; 0 lets the "
            "service decide.",
        )
    return most, parallel, failed
