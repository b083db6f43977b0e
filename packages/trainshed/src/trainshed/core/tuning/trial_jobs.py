"""Starts the trials of a tuning job: creates the record of each trial, its custom job, and a timeline entry.

The job of a trial receives the parameters as arguments, and directories of its own (spec/program#arguments,
spec/tuning#parameters, facts/program#arguments).
"""

import json
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from msgspec.structs import replace

from trainshed.core.cluster import is_reducer
from trainshed.core.job import JobSpec, WorkerPool
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.lifecycle.records import Job, Parent
from trainshed.core.names import Api, JobName, JobUid
from trainshed.core.study.records import Parameters, Trial, TrialState
from trainshed.core.study.spec import Value
from trainshed.core.tuning import timeline
from trainshed.core.tuning.machine import Transition, settle
from trainshed.core.tuning.records import RunningTrial, TuningJob
from trainshed.core.units import Nanos

_EXACT = 2**53
"""All integers up to this number are exact as floats."""
_SHORTENED = 110
"""Maximum number of characters of a tuning job's display name that are copied into the names of its trials'
jobs. The public limit of a name is 128."""


def start_trials(
    transition: Transition, proposals: Sequence[tuple[Parameters, JobUid]], *, exhausted: bool
) -> tuple[tuple[Job, TimelineEntry], ...]:
    """Start the next trials with their proposed parameters and job uids. `exhausted`: no more trials will
    follow. Return their jobs, each with the first entry of its timeline."""
    made: list[tuple[Job, TimelineEntry]] = []
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
            next_trial=number + 1, running=(*job.running, RunningTrial(number, uid)), exhausted=False
        )
        transition.record(timeline.start(job, trial, str(work.name), transition.now))
        text = f"{work.name} evaluates trial {number} of {job.name}: {timeline.assignment(parameters)}."
        made.append((work, TimelineEntry(transition.now, "created", text)))
    if exhausted:
        transition.change(exhausted=True)
        transition.record(timeline.exhaustion(transition.job, transition.now))
        settle(transition)
    return tuple(made)


def _trial_job(job: TuningJob, trial: Trial, now: Nanos) -> Job:
    """Return the new custom job that evaluates a trial."""
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
        creator=job.creator,
    )


def trial_spec(spec: JobSpec, number: int, parameters: Parameters) -> JobSpec:
    """Return the job of trial `number`: `spec` with `--name value` after the arguments of every program
    except the reducers' (facts/program#arguments, facts/program#output-directory).

    A container that has neither command nor arguments receives the parameters as its arguments, in place of
    the image's arguments. The job's output directory becomes a subdirectory with that number.
    """
    arguments = tuple(word for name, value in parameters for word in (f"--{name}", format_argument(value)))
    pools: list[WorkerPool] = []
    for pool in spec.pools:
        program = pool.program
        if not is_reducer(spec, pool.position):
            program = replace(program, args=(*program.args, *arguments))
        pools.append(replace(pool, program=program))
    scheduling = spec.scheduling
    if spec.api is Api.ML:
        # `max_wait` limits only the tuning job's wait for its first trial. The jobs of trials wait without a
        # limit of their own.
        scheduling = replace(scheduling, max_wait=None)
    return replace(
        spec,
        pools=tuple(pools),
        base_output_directory=_below(spec.base_output_directory, number),
        job_dir=_below(spec.job_dir, number),
        scheduling=scheduling,
        trial=str(number),
    )


def format_argument(value: Value) -> str:
    """Format a value for programs and `ml` views: the shortest text that parses to the same value
    (docs/tuning.md).

    A float without a fraction has no decimal point, because programs parse a DISCRETE batch size with `int`.
    A negative float has no exponent, because argparse treats `-1e-05` as an option and rejects it.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return str(int(value))
    if isinstance(value, float) and value < 0:
        return format(Decimal(repr(value)), "f")
    return str(value)


def _below(directory: str | None, number: int) -> str | None:
    return f"{directory.removesuffix('/')}/{number}" if directory else None


def public_json(spec: JobSpec, *, display_name: str, job_id: str) -> str:
    """Return a trial's job as JSON of its public API, with input fields only. `spec`: the job's
    specification, as `trial_spec` returns it."""
    job: dict[str, Any] = json.loads(spec.job_json)
    if spec.api is Api.ML:
        job.pop("hyperparameters", None)
        config, of_image = job.get("masterConfig", {}), {"containerCommand", "containerArgs"}
        holder, key = (config, "containerArgs") if of_image & config.keys() else (job, "args")
        holder[key] = list(spec.pool(0).program.args)
        if spec.job_dir:
            job["jobDir"] = spec.job_dir
        resource: dict[str, Any] = {"jobId": job_id, "trainingInput": job}
    else:
        for pool in spec.pools:
            program = job["workerPoolSpecs"][pool.position]
            part = program.get("containerSpec") or program.get("pythonPackageSpec")
            if part is not None and pool.program.args:
                part["args"] = list(pool.program.args)
        if spec.base_output_directory:
            job["baseOutputDirectory"] = {"outputUriPrefix": spec.base_output_directory}
        resource = {"displayName": display_name, "jobSpec": job}
    return json.dumps(resource, ensure_ascii=False, separators=(",", ":"))
