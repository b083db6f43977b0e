"""The page of a tuning job's trials."""

from msgspec import UNSET

from trainshed.console.pages.job import FINAL, describe, head
from trainshed.console.pages.searches import Metric, Search, parts
from trainshed.console.visits import View, Visit
from trainshed.core.names import JobUid
from trainshed.wire.status import Refused, StatusCode
from trainshed.wire.trainshed_v1.jobs import JobDescription, Tuning


async def trials(visit: Visit) -> View:
    """`/jobs/J/trials`: charts of the objective over the trials, of its parameters and of two metrics, and
    the table of the trials. Raises Refused if the job is no tuning job."""
    job = await describe(visit)
    if job.tuning is UNSET or not job.tuning:
        raise Refused(StatusCode.NOT_FOUND, f"{job.name} is no tuning job.")
    return View(
        f"Trials of {job.display_name or job.job_id}",
        "job_trials.html",
        {"job": job},
        parts={
            "head": head(visit, job, "trials"),
            **parts(_search(job, job.tuning, visit.query("trial"))),
        },
        subject=JobUid(int(job.uid)),
        lives=job.state not in FINAL,
        place="jobs",
    )


def _search(job: JobDescription, tuning: Tuning, chosen: str) -> Search:
    trials = job.trials or ()
    others = sorted({name for trial in trials for name in trial.metrics} - {tuning.metric})
    return Search(
        trials,
        (
            Metric(tuning.metric, tuning.goal == "MAXIMIZE"),
            *(Metric(name) for name in others),
        ),
        frozenset({tuning.best} - {0}),
        next((trial for trial in trials if str(trial.number) == chosen), None),
    )
