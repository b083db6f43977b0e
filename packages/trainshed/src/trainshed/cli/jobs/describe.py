"""Describes a job as lines of text: facts, causes of a wait or failure, replicas, and the timeline. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from trainshed.cli.jobs.views import JobView, exit_text
from trainshed.cli.text.colours import faint, one_line, state_colour
from trainshed.cli.text.moments import duration, local_clock, local_moment, parse_moment
from trainshed.cli.text.tables import Field, pairs, table_of
from trainshed.core.capacity import WaitReason
from trainshed.core.lifecycle.states import JobState, ReplicaState
from trainshed.core.resource_summary import summarize_resource
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.capacity import Waiting
from trainshed.wire.trainshed_v1.jobs import Failure, Replica, Trial, Tuning
from trainshed.wire.trainshed_v1.timeline import TimelineEntry

_MAX_AUTOPSIES = 3
"""Maximum number of failed replicas for which the `autopsy` command is shown."""


def description(job: JobView, now: Nanos, width: int | None, resource: Mapping[str, Any]) -> list[str]:
    """Return the lines that describe a job.

    `width`: maximum characters per line of a table of trials; None = unlimited. `resource`: the job as its
    public API returns it. It contains the specification that the user submitted.
    """
    state = click.style(job.state.value, fg=state_colour(job.state), bold=True)
    waits = "\n".join(waiting_lines(job.waiting)) if job.waiting else "\n".join(job.waits)
    facts = [
        ("Job", job.name),
        ("Of", f"{job.parent}{f', trial {job.trial}' if job.trial else ''}" if job.parent else ""),
        ("Name", one_line(job.display_name)),
        ("State", state),
        ("Waits", waits),
        ("Runtime", "\n".join(map(one_line, job.program.substitutions))),
        ("Progress", job.program.progress_words or job.progress_words),
        ("Created", local_moment(job.created_at)),
        ("Started", local_moment(job.started_at) if job.started_at else ""),
        ("Ended", local_moment(job.ended_at) if job.ended_at else ""),
        ("Lasted", job.running_time(now)),
        ("Attempt", str(job.attempt) if job.attempt and job.attempt > 1 else ""),
        ("Retries", format_counters((job.retries or {}).items())),
        ("Rule", job.rule if job.state is not JobState.SUCCEEDED else ""),
        ("Error", job.error_text),
        ("Code", str(job.error.code) if job.error else ""),
        ("Cause", "\n".join(_failure_lines(job.failure, job.error_text)) if job.failure else ""),
        ("Warned", "\n".join(job.program.warnings or job.warnings)),
        ("Began", "\n".join(_start_lines(job.program.replicas or ()))),
        ("Left", "\n".join(_autopsy_lines(job.program))),
        ("Shell", "\n".join(_shell_lines(job.program))),
        *((name.capitalize(), link) for name, link in (job.program.pages or {}).items()),
        ("TensorBoard", job.tensorboard_uri or ""),
        ("By", job.creator),
        *_requested_facts(resource),
    ]
    program = job.program
    if program is not job:
        facts += [("Model", job.model), ("Runs", program.name)]
    if program.tuning:
        facts += _tuning_facts(program, program.tuning)
    lines = pairs([(label, value) for label, value in facts if value], width)
    if program.tuning and program.trials:
        return [*lines, "", *trial_table(program.tuning, program.trials, width)]
    replicas = replica_table(program.replicas, now) if program.replicas else []
    return [*lines, "", *replicas] if replicas else lines


def _requested_facts(resource: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the request of a job: machines, images and programs of each pool, and the output directory."""
    wanted = summarize_resource(resource)
    pools: list[str] = []
    for pool in wanted.pools:
        parts = (pool.machine, pool.accelerator, pool.image, pool.program)
        pools.append(f"{pool.name}: {pool.count} × {', '.join(filter(None, parts))}")
    yield "Runs", "\n".join(map(one_line, pools))
    yield "Output", one_line(wanted.output or "")


def _tuning_facts(job: JobView, tuning: Tuning) -> list[tuple[str, str]]:
    means = [tuning.algorithm.lower(), f"{tuning.parallel_trials} at a time"]
    if tuning.stopping:
        means.append(f"{tuning.stopping} stopping")
    facts = [
        ("Tunes", f"{tuning.metric}, {tuning.goal.lower()} ({', '.join(means)})"),
        ("Trials", counts(tuning)),
    ]
    if best := best_trial(job):
        parameters = pairs([(name, format_value(value, 6)) for name, value in best.parameters.items()])
        head = click.style(best_text(tuning, best), fg="green", bold=True)
        facts += [("Best", "\n".join([head, *parameters])), ("Its job", best.job)]
    return facts


def counts(tuning: Tuning) -> str:
    """Return the number of trials in each state, such as `7 of 12 done, 4 running, 1 without a result`."""
    parts = [f"{tuning.succeeded + tuning.infeasible} of {tuning.max_trials} done"]
    if tuning.running:
        parts.append(f"{tuning.running} running")
    if tuning.infeasible:
        parts.append(f"{tuning.infeasible} without a result")
    if tuning.exhausted:
        parts.append("nothing left to try")
    return ", ".join(parts)


def best_trial(job: JobView) -> Trial | None:
    """Return the best trial of a tuning job so far, or None if no trial has a result."""
    best = job.tuning.best if job.tuning else 0
    return next((trial for trial in job.trials or () if trial.number == best), None)


def best_text(tuning: Tuning, best: Trial) -> str:
    """Return the result of the best trial as text, such as `trial 5: accuracy 0.9667 at step 12`."""
    return f"trial {best.number}: {tuning.metric} {format_value(best.value, 6)} at step {best.step}"


def best_lines(job: JobView) -> Iterator[str]:
    """Yield lines about the best trial of a tuning job and its parameters. Yield nothing if no trial has a
    result."""
    if job.tuning and (best := best_trial(job)):
        yield f"best is {click.style(best_text(job.tuning, best), fg='green')}"
        yield f"with {assignment(best, 6)}"


def trial_table(tuning: Tuning, trials: Sequence[Trial], width: int | None) -> list[str]:
    """Return the lines of a table of trials. `width`: maximum characters per line; None = unlimited."""
    fields = (
        Field("TRIAL", "number"),
        Field("STATE", "state"),
        Field(tuning.metric, "value", format_value, right=True),
        Field("PARAMETERS", None, assignment, flexible=True),
        Field("NOTE", None, _trial_note, flexible=True, optional=True),
    )
    return table_of(fields, trials, width)


def _trial_note(trial: Trial) -> str:
    """Return the reason why a trial has no result, or a note that it was stopped early. For a failed program,
    the reason is the last line of its output, which is the second-to-last line of the public message."""
    lines = [line.strip() for line in trial.reason.splitlines() if line.strip()]
    return (lines[-2:] if len(lines) > 2 else [*lines, "stopped early" * trial.stopped_early])[0]


def format_value(value: Any, digits: int = 4) -> str:
    """Return a value as text; "" for None. A number has `digits` significant digits. A whole number has
    no fraction."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e9 else f"{value:.{digits}g}"
    return "" if value is None else str(value)


def assignment(trial: Trial, digits: int = 4) -> str:
    """Return a trial's parameters as text, such as `lr=0.01, depth=3`."""
    return ", ".join(f"{name}={format_value(value, digits)}" for name, value in trial.parameters.items())


def waiting_lines(waiting: Waiting) -> Iterator[str]:
    """Yield the reason why a job waits for capacity, advice, the jobs that hold the capacity, and the number
    of jobs before it."""
    yield f"{waiting.message} ({waiting.reason})"
    if waiting.hint:
        yield waiting.hint
    holders = () if waiting.reason == WaitReason.JOB else waiting.blockers
    for number, job in enumerate(holders):
        yield f"{'and' if number else 'held'} by {job}"
    if waiting.position:
        count = waiting.position - 1
        yield f"{count} job{'s' * (count != 1)} before it" if count else "it is the next one"


def replica_table(replicas: Sequence[Replica], now: Nanos) -> list[str]:
    """Return the lines of a table of replicas."""

    def ran(replica: Replica) -> str:
        started = parse_moment(replica.start_time)
        ended = parse_moment(replica.exit.end_time) if replica.exit else 0
        return duration((ended or now) - started) if started else ""

    fields = (
        Field("REPLICA", "task"),
        Field("STATE", "state", colour=lambda replica: state_colour(ReplicaState(replica.state))),
        Field("ENDED", "exit", exit_text),
        Field("RAN", None, ran, right=True),
        Field("RESTARTS", None, lambda replica: format_counters(replica.restarts.items()), optional=True),
        Field("NODE", "node"),
        Field("STOPS BECAUSE", "leaving", optional=True),
    )
    return table_of(fields, replicas)


def format_counters(counters: Iterable[tuple[str, int]]) -> str:
    """Return counts by rule as text, such as `2 (replica_lost 1, preempted 1)` or `2 replica_lost`; ""
    without counts."""
    nonzero = [(rule, count) for rule, count in counters if count]
    if len(nonzero) == 1:
        return f"{nonzero[0][1]} {nonzero[0][0]}"
    by_rule = ", ".join(f"{rule} {count}" for rule, count in nonzero)
    return f"{sum(count for _, count in nonzero)} ({by_rule})" if nonzero else ""


def _start_lines(replicas: Sequence[Replica]) -> Iterator[str]:
    """Yield lines about how the replicas' programs were started, warm or cold. Replicas with the same text
    share one line. If the texts differ, each line begins with the name of its first replica and the number of
    its further replicas."""
    texts = {replica.began: list[str]() for replica in replicas}
    for replica in replicas:
        texts[replica.began].append(replica.task)
    for text, tasks in texts.items():
        others = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
        if text:
            yield text if len(texts) == 1 else f"{tasks[0]}{others} {text}"


def _failure_lines(failure: Failure, message: str) -> Iterator[str]:
    """Yield the cause of a failure, with details that the public error message omits."""
    status = "" if failure.status is None else f"status {failure.status}"
    facts = ", ".join(filter(None, (failure.task, status)))
    yield f"{failure.cause}: {facts}" if facts else failure.cause
    if failure.reason not in message:
        yield failure.reason


def _autopsy_lines(job: JobView) -> Iterator[str]:
    """Yield the failed replicas whose files are kept (autopsies), and the commands that open a shell in these
    files."""
    autopsies = job.autopsies or ()
    latest = max((autopsy.attempt for autopsy in autopsies), default=0)
    kept = [autopsy for autopsy in autopsies if autopsy.attempt == latest]
    for autopsy in kept[:_MAX_AUTOPSIES]:
        until = local_moment(parse_moment(autopsy.expire_time))
        yield f"{autopsy.task}, until {until}: trainshed jobs autopsy {job.job_id} {autopsy.task}"
    if len(kept) > _MAX_AUTOPSIES or len(kept) < len(autopsies):
        yield f"for other replicas or attempts: trainshed jobs autopsy {job.job_id} REPLICA --attempt N"


def _shell_lines(job: JobView) -> Iterator[str]:
    """Yield the command for a shell in a running job with web access, and its links."""
    if links := tuple((job.web_access_uris or {}).items()):
        yield f"trainshed jobs shell {job.job_id}{' [REPLICA]' if len(links) > 1 else ''}, or in a browser:"
        yield from pairs(links)


def timeline_lines(entries: Sequence[TimelineEntry], width: int | None = None) -> list[str]:
    """Return the lines of a timeline: time of day, time since the first entry, kind and message. `width`:
    maximum characters of a line; None = unlimited."""
    if not entries:
        return []
    # The service stores entries in the order in which it receives them, which may differ from the order of
    # their times.
    entries = sorted(entries, key=lambda entry: parse_moment(entry.at))
    began = parse_moment(entries[0].at)
    fields = (
        Field("TIME", "at", lambda at: local_clock(parse_moment(at))),
        Field("AFTER", "at", lambda at: f"+{duration(parse_moment(at) - began)}", right=True),
        Field("WHAT", "kind"),
        Field("MESSAGE", None, _first_line, wraps=True),
    )
    return [faint(f"{local_moment(began)[:10]}  Timeline"), *table_of(fields, entries, width)]


def _first_line(entry: TimelineEntry) -> str:
    """Return the first line of an entry's message. `describe` shows the other lines, such as the end of a
    log. The first line of a verdict contains only evidence, so the effect of the verdict is appended."""
    first, *more = entry.message.splitlines() or [""]
    if not more or entry.kind != "verdict":
        return first.strip()
    return f"{first.strip()} …):{more[-1].rpartition('):')[2]}"
