"""How the trials of a tuning job begin: a record, a custom job of its own, and a line of the story each."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.names import Api, JobName, JobUid
from trainshed.core.study.trials import Parameters, Trial, TrialState
from trainshed.core.tuning import story
from trainshed.core.tuning.machine import settle
from trainshed.core.tuning.records import RunningTrial, TuningJob
from trainshed.core.tuning.trial_jobs import trial_spec
from trainshed.core.tuning.trial_public import public_json
from trainshed.core.tuning.turn import Turn

_SHORTENED = 110
"""Characters of a tuning job's display name that those of its trials begin with; the public limit is 128."""


@dataclass(frozen=True, slots=True)
class BegunTrial:
    """A trial that is new in this turn, its job, and the first entry of that one's story."""

    trial: Trial
    job: Job
    entry: TimelineEntry


def begin(
    turn: Turn, proposals: Sequence[tuple[Parameters, JobUid]], *, exhausted: bool
) -> tuple[BegunTrial, ...]:
    """The next trials with the uids of their jobs. `exhausted`: nothing will follow them."""
    made: list[BegunTrial] = []
    for parameters, uid in proposals:
        job = turn.job
        number = job.next_trial
        trial = Trial(
            study=job.study,
            number=number,
            state=TrialState.ACTIVE,
            parameters=parameters,
            created=turn.now,
            job=uid,
        )
        work = _trial_job(job, trial, turn.now)
        turn.store(trial)
        turn.change(
            next_trial=number + 1,
            running=(*job.running, RunningTrial(number, uid)),
            exhausted=False,
        )
        turn.tell(story.began(job, trial, str(work.name), turn.now))
        told = (
            f"{work.name} evaluates trial {number} of {job.name}: {story.assignment(parameters)}."
        )
        made.append(BegunTrial(trial, work, TimelineEntry(turn.now, "created", told)))
    if exhausted:
        turn.change(exhausted=True)
        turn.tell(story.exhausted(turn.job, turn.now))
        settle(turn)
    return tuple(made)


def _trial_job(job: TuningJob, trial: Trial, now: int) -> Job:
    """The custom job that evaluates a trial, as it is stored for the first time."""
    if job.name.api is Api.ML:
        name = job.name.of_trial(trial.number)
    else:
        name = JobName(Api.VERTEX, job.name.project_id, job.name.location, str(trial.job))
    spec = trial_spec(job.spec.trial, trial.number, trial.parameters)
    display_name = f"{job.display_name[:_SHORTENED]}-trial-{trial.number}"
    return Job(
        uid=trial.job,
        name=name,
        display_name=display_name,
        spec=spec,
        public_json=public_json(spec, display_name=display_name, job_id=name.job_id),
        created=now,
        updated=now,
        labels=job.labels,
        parent=Parent(job.uid, job.name, trial.number),
    )
