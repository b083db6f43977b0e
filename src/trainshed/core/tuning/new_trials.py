"""How the trials of a tuning job begin: a record, a custom job of its own, and a line of the story each."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.names import Api, JobName, JobUid
from trainshed.core.study.records import Parameters, Trial, TrialState
from trainshed.core.tuning import timeline
from trainshed.core.tuning.machine import settle
from trainshed.core.tuning.records import RunningTrial, TuningJob
from trainshed.core.tuning.transition import Transition
from trainshed.core.tuning.trial_jobs import public_json, trial_spec

_SHORTENED = 110
"""Characters of a tuning job's display name that those of its trials begin with; the public limit is 128."""


@dataclass(frozen=True, slots=True)
class BegunTrial:
    """A trial that is new in this transition, its job, and the first entry of that one's story."""

    trial: Trial
    job: Job
    entry: TimelineEntry


def begin(
    transition: Transition, proposals: Sequence[tuple[Parameters, JobUid]], *, exhausted: bool
) -> tuple[BegunTrial, ...]:
    """The next trials with the uids of their jobs. `exhausted`: nothing will follow them."""
    made: list[BegunTrial] = []
    for parameters, uid in proposals:
        job = transition.job
        number = job.next_trial
        trial = Trial(
            study=job.study,
            number=number,
            state=TrialState.ACTIVE,
            parameters=parameters,
            created=transition.now,
            job=uid,
        )
        work = _trial_job(job, trial, transition.now)
        transition.store(trial)
        transition.change(
            next_trial=number + 1,
            running=(*job.running, RunningTrial(number, uid)),
            exhausted=False,
        )
        transition.record(timeline.began(job, trial, str(work.name), transition.now))
        told = f"{work.name} evaluates trial {number} of {job.name}: {timeline.assignment(parameters)}."
        made.append(BegunTrial(trial, work, TimelineEntry(transition.now, "created", told)))
    if exhausted:
        transition.change(exhausted=True)
        transition.record(timeline.exhausted(transition.job, transition.now))
        settle(transition)
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
