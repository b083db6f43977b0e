"""Describes a job as lines of text: facts, why it waits or failed, replicas, the timeline by attempts.
Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo

import click

from trainshed.cli.jobs.submitted import SubmittedView
from trainshed.cli.jobs.views import (
    FailureView,
    JobView,
    ReplicaView,
    TimelineView,
    WaitingView,
    how,
)
from trainshed.cli.text.colours import entry_colour, faint, replica_colour, state_colour
from trainshed.cli.text.moments import duration, local_clock, local_moment, parse_moment
from trainshed.cli.text.tables import Column, joined, pairs, table
from trainshed.cli.trial_table import best_text, best_trial, counts, terminal_text, trial_table
from trainshed.cli.tuning_views import TuningView, shown
from trainshed.core.failure.rules import Effect
from trainshed.core.lifecycle.states import JobState
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.timeline import (
    Attempt,
    Counters,
    Incarnation,
    ReplicaHistory,
    Verdict,
)

_NAMED = 3
"""Maximum failed replicas for which the command that opens their autopsy is shown."""


_EFFECTS = {
    Effect.JOB_SUCCEEDS: "job succeeds",
    Effect.REPLICA_DONE: "done",
    Effect.REPLICA_RESTARTS: "restart",
    Effect.JOB_RETRIES: "job retry",
    Effect.JOB_FAILS: "job fails",
    Effect.JOB_CANCELLED: "job cancelled",
}

_BEGINS = frozenset({"admitted", "attempt"})
"""Kinds of the timeline's entries that begin an attempt."""


@dataclass(frozen=True, slots=True)
class IncarnationView:
    """One incarnation of a replica."""

    attempt: int
    replica: str
    task: str
    number: int
    node: str
    started: Nanos
    ended: Nanos
    #: How it ended; "" = it has not.
    how: str
    #: The effect of the verdict on its end; "" = there is none.
    effect: str = ""
    #: The verdict as text.
    verdict: str = ""

    @staticmethod
    def of_all(attempts: Iterable[Attempt]) -> tuple["IncarnationView", ...]:
        """Return the views of all incarnations of the attempts."""
        return tuple(
            _incarnation(attempt.attempt, replica, incarnation)
            for attempt in attempts
            for replica in attempt.replicas
            for incarnation in replica.incarnations
        )


def description(
    job: JobView,
    now: Nanos,
    zone: tzinfo | None = None,
    width: int | None = None,
    submitted: SubmittedView | None = None,
) -> list[str]:
    """Return the lines that describe a job. `width`: maximum characters per line of a table of trials, None =
    unlimited. `submitted`: its specification; None = left out."""
    state = click.style(job.state.value, fg=state_colour(job.state), bold=True)
    waits = "\n".join(waiting_lines(job.waiting)) if job.waiting else "\n".join(job.waits)
    facts = [
        ("Job", job.name),
        ("Of", f"{job.parent}{f', trial {job.trial}' if job.trial else ''}" if job.parent else ""),
        ("Name", job.display_name),
        ("State", state),
        ("Waits", waits),
        ("Runtime", "\n".join(job.program.substitutions)),
        ("Progress", job.program.progress or job.progress),
        ("Reported", ", ".join(f"{name} {value}" for name, value in job.metrics)),
        ("Created", local_moment(job.created, zone)),
        ("Started", local_moment(job.started, zone) if job.started else ""),
        ("Ended", local_moment(job.ended, zone) if job.ended else ""),
        ("Lasted", job.lasted(now)),
        ("Attempt", str(job.attempt) if job.attempt > 1 else ""),
        ("Retries", counted(job.retries)),
        ("Rule", job.rule if job.state is not JobState.SUCCEEDED else ""),
        ("Error", job.error),
        ("Code", str(job.error_code) if job.error else ""),
        ("Cause", "\n".join(_failure_lines(job.failure, job.error)) if job.failure else ""),
        ("Began", "\n".join(_beginnings(job.program.replicas))),
        ("Left", "\n".join(_autopsy_lines(job.program, zone))),
        ("Shell", "\n".join(_shell_lines(job.program))),
        ("TensorBoard", job.tensorboard),
        ("Log", job.log_deleted),
        ("By", job.creator),
        *(submitted.facts() if submitted else ()),
    ]
    program = job.program
    if program is not job:
        facts += [("Model", job.model), ("Runs", program.name)]
    if program.tuning:
        facts += _tuning_facts(program, program.tuning)
    lines = pairs([(label, value) for label, value in facts if value])
    if program.tuning and program.trials:
        tuning = program.tuning
        table_ = trial_table(tuning.metric, program.trials, {tuning.best}, now, width)
        return [*lines, "", *map(terminal_text, table_)]
    replicas = replica_table(program.replicas, now) if program.replicas else []
    return [*lines, "", *replicas] if replicas else lines


def _tuning_facts(job: JobView, tuning: TuningView) -> list[tuple[str, str]]:
    how = [tuning.algorithm.lower(), f"{tuning.parallel} at a time"]
    if tuning.stopping:
        how.append(f"{tuning.stopping} stopping")
    best = best_trial(tuning, job.trials)
    facts: list[tuple[str, str]] = [
        ("Tunes", f"{tuning.metric}, {tuning.goal.value.lower()} ({', '.join(how)})"),
        ("Trials", counts(tuning)),
    ]
    if best:
        parameters = pairs([(name, shown(value, 6)) for name, value in best.parameters])
        head = click.style(best_text(tuning, best), fg="green", bold=True)
        facts += [("Best", "\n".join([head, *parameters])), ("Its job", best.job)]
    return facts


def waiting_lines(waiting: WaitingView) -> Iterator[str]:
    """Yield why a job has no capacity, what would help, which jobs hold it, and how many jobs are before
    it."""
    yield f"{waiting.message} ({waiting.reason})"
    if waiting.hint:
        yield waiting.hint
    for number, job in enumerate(waiting.blockers):
        yield f"{'and' if number else 'held'} by {job}"
    if waiting.position:
        yield "it is the next one" if waiting.position == 1 else _behind(waiting.position - 1)


def replica_table(replicas: tuple[ReplicaView, ...], now: Nanos) -> list[str]:
    """Return the lines of a table of replicas. Restarts, and reasons to leave a node, have columns only if
    there are any."""
    restarted = any(replica.restarts for replica in replicas)
    leaving = any(replica.leaving for replica in replicas)
    columns = [
        Column("REPLICA"),
        Column("STATE"),
        Column("ENDED"),
        Column("RAN", right=True),
        *([Column("RESTARTS")] if restarted else []),
        Column("NODE"),
        *([Column("LEAVES BECAUSE")] if leaving else []),
    ]
    rows = [
        (
            replica.task,
            replica.state.value,
            replica.how or "–",
            duration((replica.ended or now) - replica.started) if replica.started else "–",
            *([counted(replica.restarts) or "–"] if restarted else []),
            replica.node or "–",
            *([replica.leaving or "–"] if leaving else []),
        )
        for replica in replicas
    ]
    header, *cells = table(columns, rows)
    lines = [faint(joined(header))]
    for replica, row in zip(replicas, cells, strict=True):
        row[0] = click.style(row[0], fg=replica_colour(replica.id))
        row[1] = click.style(row[1], fg=state_colour(replica.state))
        lines.append(joined(row))
    return lines


def counted(counters: Iterable[tuple[str, int]]) -> str:
    """Return counts by rule as text: `2 (replica_lost 1, preempted 1)`, `2 replica_lost`; "" for none."""
    nonzero = [(rule, count) for rule, count in counters if count]
    if len(nonzero) == 1:
        return f"{nonzero[0][1]} {nonzero[0][0]}"
    named = ", ".join(f"{rule} {count}" for rule, count in nonzero)
    return f"{sum(count for _, count in nonzero)} ({named})" if nonzero else ""


def _beginnings(replicas: Sequence[ReplicaView]) -> Iterator[str]:
    """Yield how programs were started, warm or cold: each text once, with its replicas if they differ."""
    texts = {replica.began: list[str]() for replica in replicas}
    for replica in replicas:
        texts[replica.began].append(replica.task)
    for text, tasks in texts.items():
        others = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
        if text:
            yield text if len(texts) == 1 else f"{tasks[0]}{others} {text}"


def _failure_lines(failure: FailureView, message: str) -> Iterator[str]:
    """Yield the cause of a failure, with what the public message leaves out."""
    status = "" if failure.status is None else f"status {failure.status}"
    facts = ", ".join(filter(None, (failure.task, status)))
    yield f"{failure.cause}: {facts}" if facts else failure.cause
    if failure.reason not in message:
        yield failure.reason


def _autopsy_lines(job: JobView, zone: tzinfo | None) -> Iterator[str]:
    """Yield which replicas' autopsies are kept, and the commands that open them."""
    latest = max((autopsy.attempt for autopsy in job.autopsies), default=0)
    kept = [autopsy for autopsy in job.autopsies if autopsy.attempt == latest]
    for autopsy in kept[:_NAMED]:
        yield (
            f"{autopsy.task}, until {local_moment(autopsy.expires, zone)}: trainshed jobs autopsy {job.id} "
            f"{autopsy.task}"
        )
    if len(kept) > _NAMED or len(kept) < len(job.autopsies):
        yield f"all that is kept: trainshed jobs autopsy {job.id} --list"


def _shell_lines(job: JobView) -> Iterator[str]:
    """Yield the command for a shell in a running job with web access, and its links."""
    if not job.links:
        return
    yield f"trainshed jobs shell {job.id}{' [REPLICA]' if len(job.links) > 1 else ''}, or in a browser:"
    yield from pairs(job.links)


def _behind(count: int) -> str:
    return f"{count} job{'s' * (count != 1)} before it"


def timeline_lines(
    entries: Sequence[TimelineView],
    attempts: Sequence[Attempt] = (),
    zone: tzinfo | None = None,
) -> list[str]:
    """Return the lines of a timeline: time of day, time since the first entry, kind and message, with a
    heading before each attempt."""
    if not entries:
        return []
    # They are stored in the order in which the service learnt of them, which is not that of their times.
    entries = sorted(entries, key=lambda entry: entry.at)
    columns = (Column("TIME"), Column("AFTER", right=True), Column("WHAT"), Column("MESSAGE"))
    rows = [
        (
            local_clock(entry.at, zone),
            "+" + duration(entry.at - entries[0].at),
            entry.kind,
            _first_line(entry),
        )
        for entry in entries
    ]
    header, *cells = table(columns, rows)
    day = f"{local_moment(entries[0].at, zone)[:10]}  Timeline"
    lines = [faint(day), faint(joined(header))]
    headings = {attempt.attempt: attempt for attempt in attempts}
    for entry, row in zip(entries, cells, strict=True):
        if entry.kind in _BEGINS and entry.attempt in headings:
            lines.append(_heading(headings.pop(entry.attempt)))
        lines.append(_line(entry, row))
    return lines


def _first_line(entry: TimelineView) -> str:
    """Return the first line of an entry's message; `describe` shows the others, such as the end of a log. A
    verdict's effect stands behind its evidence, so it is added to the first line."""
    first, *more = entry.message.splitlines() or [""]
    if not more or entry.kind != "verdict":
        return first.strip()
    return f"{first.strip()} …):{more[-1].rpartition('):')[2]}"


def incarnation_table(lives: Sequence[IncarnationView]) -> list[str]:
    """Return the lines of a table of the incarnations that have a verdict or are not the first; [] if there
    are none."""
    shown = [life for life in lives if life.verdict or life.number > 1]
    if not shown:
        return []
    columns = (
        Column("ATTEMPT", right=True),
        Column("REPLICA"),
        Column("LIFE", right=True),
        Column("NODE"),
        Column("RAN", right=True),
        Column("ENDED"),
        Column("VERDICT"),
    )
    rows = [
        (
            str(life.attempt),
            life.task,
            str(life.number),
            life.node or "–",
            duration(life.ended - life.started) if life.started and life.ended else "–",
            life.how or "–",
            life.verdict or "–",
        )
        for life in shown
    ]
    header, *cells = table(columns, rows)
    lines = [faint(joined(header))]
    for life, row in zip(shown, cells, strict=True):
        row[1] = click.style(row[1], fg=replica_colour(life.replica))
        if life.verdict:
            row[6] = click.style(row[6], fg=entry_colour("verdict", life.effect))
        lines.append(joined(row))
    return lines


def counter_lines(counters: Counters) -> Iterator[str]:
    """Yield a line with the job's retries and one with its replicas' restarts, if there were any."""
    if retries := counted(counters.retries.items()):
        yield f"Retries: {retries}"
    if restarts := counted(counters.restarts.items()):
        yield f"Restarts: {restarts}"


def _incarnation(attempt: int, replica: ReplicaHistory, life: Incarnation) -> IncarnationView:
    verdict = life.verdict
    return IncarnationView(
        attempt,
        replica.id,
        replica.task,
        life.incarnation,
        life.node,
        parse_moment(life.start_time),
        parse_moment(life.end_time),
        "lost" if life.lost else how(life.exit),
        verdict.effect if verdict else "",
        _verdict_text(verdict) if verdict else "",
    )


def _verdict_text(verdict: Verdict) -> str:
    """Return a verdict as text, such as `replica_lost: restart 1 of 5`."""
    effect = next((text for known, text in _EFFECTS.items() if known == verdict.effect), "")
    budget = f" {verdict.count} of {verdict.budget}" if verdict.budget else ""
    return f"{verdict.rule}: {effect or verdict.effect}{budget}"


def _heading(attempt: Attempt) -> str:
    started, ended = parse_moment(attempt.start_time), parse_moment(attempt.end_time)
    lasted = f"  {duration(ended - started)}" if ended else "  goes on"
    rule = f", ended by {attempt.rule}" if attempt.rule else ""
    return click.style(f"Attempt {attempt.attempt}", bold=True) + faint(lasted + rule)


def _line(entry: TimelineView, row: list[str]) -> str:
    row[0], row[1] = faint(row[0]), faint(row[1])
    colour = entry_colour(entry.kind, entry.effect)
    if colour:
        row[2:] = [click.style(cell, fg=colour) for cell in row[2:]]
    return joined(row)
