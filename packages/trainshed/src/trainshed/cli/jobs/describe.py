"""Describes a job as lines of text: facts, why it waits or failed, replicas, the timeline by attempts.
Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

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
from trainshed.cli.text.colours import (
    entry_colour,
    faint,
    replica_colour,
    severity_colour,
    state_colour,
    trial_colour,
)
from trainshed.cli.text.moments import (
    duration,
    gibibytes,
    local_clock,
    local_moment,
    parse_moment,
    size,
)
from trainshed.cli.text.tables import Column, Field, joined, pairs, table, table_of
from trainshed.core.failure.rules import Effect
from trainshed.core.lifecycle.states import JobState
from trainshed.core.study.records import TrialState
from trainshed.core.units import Nanos
from trainshed.wire.trainshed_v1.curves import JobCurve, JobCurves
from trainshed.wire.trainshed_v1.jobs import Trial, Tuning
from trainshed.wire.trainshed_v1.timeline import (
    Attempt,
    Counters,
    Incarnation,
    ReplicaHistory,
    Verdict,
)
from trainshed.wire.trainshed_v1.usage import GpuUsage, ReplicaUsage, Usage

_NAMED = 3
"""Maximum failed replicas for which the command that opens their autopsy is shown."""
_CURVES = 12
"""Maximum curves that are shown."""
_OWN_COLUMNS = 6
"""Maximum parameters of trials that have columns of their own; more share one column."""


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
        return [*lines, "", *trial_table(program.tuning, program.trials, now, width)]
    replicas = replica_table(program.replicas, now) if program.replicas else []
    return [*lines, "", *replicas] if replicas else lines


def _tuning_facts(job: JobView, tuning: Tuning) -> list[tuple[str, str]]:
    means = [tuning.algorithm.lower(), f"{tuning.parallel_trials} at a time"]
    if tuning.stopping:
        means.append(f"{tuning.stopping} stopping")
    facts = [
        ("Tunes", f"{tuning.metric}, {tuning.goal.lower()} ({', '.join(means)})"),
        ("Trials", counts(tuning)),
    ]
    if best := best_trial(job):
        parameters = pairs([(name, shown(value, 6)) for name, value in best.parameters.items()])
        head = click.style(best_text(tuning, best), fg="green", bold=True)
        facts += [("Best", "\n".join([head, *parameters])), ("Its job", best.job)]
    return facts


def counts(tuning: Tuning) -> str:
    """Return the numbers of trials as text, such as `7 of 12 done, 4 running, 1 without a result`."""
    parts = [f"{tuning.succeeded + tuning.infeasible} of {tuning.max_trials} done"]
    if tuning.running:
        parts.append(f"{tuning.running} running")
    if tuning.infeasible:
        parts.append(f"{tuning.infeasible} without a result")
    if tuning.exhausted:
        parts.append("nothing left to try")
    return ", ".join(parts)


def best_trial(job: JobView) -> Trial | None:
    """Return the best trial of a tuning job so far; None if none has a result."""
    best = job.tuning.best if job.tuning else 0
    return next((trial for trial in job.trials if trial.number == best), None)


def best_text(tuning: Tuning, best: Trial) -> str:
    """Return the best trial's result as text, such as `trial 5: accuracy 0.9667 at step 12`."""
    return f"trial {best.number}: {tuning.metric} {shown(best.value, 6)} at step {best.step}"


def best_lines(job: JobView) -> Iterator[str]:
    """Yield the best trial of a tuning job and its parameters, if it has one."""
    if job.tuning and (best := best_trial(job)):
        yield f"best is {click.style(best_text(job.tuning, best), fg='green')}"
        yield f"with {assignment(best, 6)}"


def trial_table(
    tuning: Tuning, trials: Sequence[Trial], now: Nanos, width: int | None = None
) -> list[str]:
    """Return the lines of a table of trials; the best one has a star. `width`: as in `table_of`."""
    names = tuple(dict.fromkeys(name for trial in trials for name in trial.parameters))
    parameters = [
        Field(name, None, lambda trial, name=name: shown(trial.parameters.get(name)), right=True)
        for name in names
    ]
    together = [Field("PARAMETERS", None, assignment, flexible=True)]
    fields = (
        Field("TRIAL", None, lambda trial: f"{'★ ' * (trial.number == tuning.best)}{trial.number}"),
        Field("STATE", None, _trial_word, colour=_trial_colour),
        Field(tuning.metric, None, lambda trial: shown(_reached(trial)[1]), right=True),
        Field("STEP", None, lambda trial: str(_reached(trial)[0] or ""), right=True),
        Field("TIME", None, lambda trial: _ran(trial, now), right=True),
        *(parameters if len(names) <= _OWN_COLUMNS else together),
        Field("NOTE", None, _trial_note, flexible=True, optional=True),
    )
    return table_of(fields, trials, width)


def _trial_word(trial: Trial) -> str:
    """Return its state as it is shown: of an active trial, the state of its job, if that is not over."""
    is_active = trial.state == TrialState.ACTIVE and trial.job_state
    return trial.job_state if is_active and not JobState(trial.job_state).is_final else trial.state


def _trial_colour(trial: Trial) -> str:
    return trial_colour(
        TrialState(trial.state), JobState(trial.job_state) if trial.job_state else None
    )


def _reached(trial: Trial) -> tuple[int, float | None]:
    """Return the step and the value of the final measurement, else of the newest one."""
    if trial.value is not None:
        return trial.step, trial.value
    return trial.curve[-1] if trial.curve else (0, None)


def _ran(trial: Trial, now: Nanos) -> str:
    started, ended = parse_moment(trial.start_time), parse_moment(trial.end_time)
    return duration((ended or now) - started) if started else ""


def _trial_note(trial: Trial) -> str:
    """Return why a trial has no result, or that it was stopped early. For a failed program it is the
    program's last line, which stands in the public message between the first line and the last one."""
    lines = [line.strip() for line in trial.reason.strip().splitlines() if line.strip()]
    return (
        lines[-2]
        if len(lines) > 2
        else lines[0]
        if lines
        else "stopped early" * trial.stopped_early
    )


def shown(value: Any, digits: int = 4) -> str:
    """Return a value as text: a number with `digits` significant digits, a whole one without a fraction;
    "" for None."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e9 else f"{value:.{digits}g}"
    return "" if value is None else str(value)


def assignment(trial: Trial, digits: int = 4) -> str:
    """Return a trial's parameters as text, such as `lr=0.01, depth=3`."""
    return ", ".join(f"{name}={shown(value, digits)}" for name, value in trial.parameters.items())


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


def replica_table(replicas: Sequence[ReplicaView], now: Nanos) -> list[str]:
    """Return the lines of a table of replicas."""

    def ran(replica: ReplicaView) -> str:
        return duration((replica.ended or now) - replica.started) if replica.started else ""

    fields = (
        _task(),
        Field("STATE", "state.value", colour=lambda replica: state_colour(replica.state)),
        Field("ENDED", "how"),
        Field("RAN", None, ran, right=True),
        Field("RESTARTS", "restarts", counted, optional=True),
        Field("NODE", "node"),
        Field("LEAVES BECAUSE", "leaving", optional=True),
    )
    return table_of(fields, replicas)


def _task(title: str = "REPLICA", path: str = "task") -> Field:
    """Return a column of replicas in their colours."""
    return Field(title, path, colour=lambda record: replica_colour(record.id))


def curve_lines(curves: JobCurves, job: str) -> list[str]:
    """Return the lines about what a job's programs logged as summaries; [] if nothing."""
    if not curves.curves:
        return []

    def last(of: str) -> Field:
        return Field(
            of.upper(), None, lambda curve: shown(getattr(curve.points[-1], of)), right=True
        )

    def most(name: str, choose: Any) -> Field:
        def text(curve: JobCurve) -> str:
            numbers = [point.value for point in curve.points if isinstance(point.value, float)]
            return shown(choose(numbers)) if numbers else ""

        return Field(name, None, text, right=True)

    fields = (
        Field("TRIAL", None, lambda curve: str(curve.trial or ""), right=True, optional=True),
        Field("RUN", "run", optional=True),
        Field("CURVE", "tag"),
        last("step"),
        last("value"),
        most("MIN", min),
        most("MAX", max),
    )
    more = len(curves.curves) - _CURVES
    hint = [faint(f"{more} more: trainshed describe curves {job}")] if more > 0 else []
    return ["", *table_of(fields, curves.curves[:_CURVES]), *hint]


def usage_lines(usage: Usage) -> list[str]:
    """Return the lines about the resources that a job's replicas used, and about its reduction; [] if
    nothing is known yet."""
    replicas = [replica for replica in usage.replicas if replica.sample_time]
    if not replicas:
        return []

    def busy(replica: ReplicaUsage) -> str:
        shares = (gpu.mean_busy for gpu in replica.gpus)
        return " ".join("–" if share is None else f"{share:.0%}" for share in shares)

    def memory(gpus: Sequence[GpuUsage]) -> str:
        used, whole = (
            sum(number or 0 for number in numbers)
            for numbers in (
                [gpu.peak_memory_bytes for gpu in gpus],
                [gpu.total_memory_bytes for gpu in gpus],
            )
        )
        return f"{gibibytes(used)} of {gibibytes(whole)}" if whole else ""

    fields = (
        _task("USED BY"),
        Field("MEAN CPU", None, lambda used: f"{used.mean_cpus:.2f} of {used.vcpus:g}", right=True),
        Field(
            "PEAK MEMORY",
            None,
            lambda used: f"{gibibytes(used.peak_memory_bytes)} of {gibibytes(used.limit_bytes)}",
            right=True,
        ),
        Field("SENT", "sent_bytes", size, right=True, optional=True),
        Field("RECEIVED", "received_bytes", size, right=True, optional=True),
        Field("MEAN GPU", None, busy, optional=True),
        Field("PEAK GPU MEMORY", "gpus", memory, right=True, optional=True),
    )
    return ["", *table_of(fields, replicas), *_reduction_lines(usage.replicas)]


def _reduction_lines(replicas: Sequence[ReplicaUsage]) -> list[str]:
    """Return the lines about a job's reduction: a table of what was reported, and the notes; a note that
    several replicas have is shown once. [] for a job without reducers."""
    tellers: dict[tuple[str, str], list[str]] = {}
    for replica in replicas:
        for severity, text in dict.fromkeys(_notes(replica)):
            tellers.setdefault((severity, text), []).append(replica.task)
    notes = [
        click.style(
            f"{tasks[0]}{f' and {len(tasks) - 1} more' * (len(tasks) > 1)}: {text}",
            fg=severity_colour(severity),
        )
        for (severity, text), tasks in tellers.items()
    ]
    heard = [r for r in replicas if r.reduction and r.reduction.sample_time]

    def count(title: str, name: str, show: Any) -> Field:
        return Field(title, f"reduction.{name}", show, right=True)

    def rate(bytes_per_second: float) -> str:
        return f"{size(bytes_per_second)}/s"

    fields = (
        _task("REDUCTION"),
        count("IN", "per_second.received_bytes", rate),
        count("OUT", "per_second.sent_bytes", rate),
        count("RECEIVED", "totals.received_bytes", size),
        count("SENT", "totals.sent_bytes", size),
        count("RESTARTS", "restarts", str),
        Field("WAITED", "reduction.totals.wait_seconds", waited),
    )
    lines = [*(table_of(fields, heard) if heard else []), *notes]
    return ["", *lines] if lines else []


def _notes(replica: ReplicaUsage) -> Iterator[tuple[str, str]]:
    """Yield (severity, text) of a replica's notes; the current way of reducing replaces all about that."""
    reduction = replica.reduction
    if not reduction:
        return
    if mode := reduction.mode:
        lost = mode.lost_reducers if not mode.is_native else 0
        yield mode.severity, mode.text + f" (without {lost} of them by now)" * bool(lost)
    for note in reduction.notes:
        if not note.name.startswith(("mode", "native", "chosen ")):
            yield note.severity, note.text


def waited(waits: float | Sequence[float]) -> str:
    """Return waiting as text, such as `14s, 12s for rank 3`: the total, and for the slowest rank if ranks are
    known; "" for hardly any."""
    by_rank = waits if isinstance(waits, Sequence) else ()
    total = sum(by_rank) if isinstance(waits, Sequence) else waits
    if total < 0.05:
        return ""
    text = duration(int(total * 1e9))
    if not by_rank:
        return text
    most = max(by_rank)
    return f"{text}, {duration(int(most * 1e9))} for rank {by_rank.index(most)}"


def counted(counters: Iterable[tuple[str, int]]) -> str:
    """Return counts by rule as text: `2 (replica_lost 1, preempted 1)`, `2 replica_lost`; "" for none."""
    nonzero = [(rule, count) for rule, count in counters if count]
    if len(nonzero) == 1:
        return f"{nonzero[0][1]} {nonzero[0][0]}"
    by_rule = ", ".join(f"{rule} {count}" for rule, count in nonzero)
    return f"{sum(count for _, count in nonzero)} ({by_rule})" if nonzero else ""


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
        yield f"and of others or earlier attempts: trainshed jobs autopsy {job.id} REPLICA --attempt N"


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
    notable = [life for life in lives if life.verdict or life.number > 1]

    def ran(life: IncarnationView) -> str:
        return duration(life.ended - life.started) if life.started and life.ended else ""

    fields = (
        Field("ATTEMPT", "attempt", right=True),
        Field("REPLICA", "task", colour=lambda life: replica_colour(life.replica)),
        Field("LIFE", "number", right=True),
        Field("NODE", "node"),
        Field("RAN", None, ran, right=True),
        Field("ENDED", "how"),
        Field(
            "VERDICT",
            "verdict",
            colour=lambda life: entry_colour("verdict", life.effect) if life.verdict else None,
        ),
    )
    return table_of(fields, notable) if notable else []


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
