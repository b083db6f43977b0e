"""A job's story in lines: its attempts as headings, what happened in each, and the lives of its replicas. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

import click

from trainshed.cli.colours import entry_colour, faint, replica_colour
from trainshed.cli.describing import counted
from trainshed.cli.moments import duration, local_clock, local_moment, parse_moment
from trainshed.cli.tables import Column, joined, table
from trainshed.cli.views import TimelineView, how
from trainshed.core.failure.rules import Effect

_EFFECTS = {
    Effect.JOB_SUCCEEDS: "job succeeds",
    Effect.REPLICA_DONE: "done",
    Effect.REPLICA_RESTARTS: "restart",
    Effect.JOB_RETRIES: "job retry",
    Effect.JOB_FAILS: "job fails",
    Effect.JOB_CANCELLED: "job cancelled",
}
_BEGINS = frozenset({"admitted", "attempt"})


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt. `ended` 0: it goes on; `rule`: why it ended."""

    number: int
    started: int
    ended: int
    rule: str

    @staticmethod
    def parse(found: Mapping[str, Any]) -> "AttemptView":
        """Read one of the `attempts`."""
        return AttemptView(
            found["attempt"],
            parse_moment(found["startTime"]),
            parse_moment(found["endTime"]),
            found["rule"],
        )


@dataclass(frozen=True, slots=True)
class LifeView:
    """One incarnation of a replica. `how`: how it ended, "" while it lives; `effect` and `verdict`: what followed."""

    attempt: int
    replica: str
    task: str
    number: int
    node: str
    started: int
    ended: int
    how: str
    effect: str = ""
    verdict: str = ""

    @staticmethod
    def parse_all(attempts: Sequence[Mapping[str, Any]]) -> tuple["LifeView", ...]:
        """Every incarnation of the `attempts`."""
        return tuple(
            _life(attempt["attempt"], replica, found)
            for attempt in attempts
            for replica in attempt["replicas"]
            for found in replica["incarnations"]
        )


def story(
    entries: Sequence[TimelineView],
    attempts: Sequence[AttemptView] = (),
    zone: tzinfo | None = None,
) -> list[str]:
    """The lines of a timeline: time of day, time since the first entry, kind, message; a heading before each attempt."""
    if not entries:
        return []
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
    day = f"{local_moment(entries[0].at, zone)[:10]}  the story begins"
    lines = [faint(day), faint(joined(header))]
    headings = {attempt.number: attempt for attempt in attempts}
    for entry, row in zip(entries, cells, strict=True):
        if entry.kind in _BEGINS and entry.attempt in headings:
            lines.append(_heading(headings.pop(entry.attempt)))
        lines.append(_line(entry, row))
    return lines


def _first_line(entry: TimelineView) -> str:
    """Further lines of a message (the end of a log, say) are told by `describe`; but what follows from a verdict stands
    behind its evidence, however long that is."""
    first, *more = entry.message.splitlines() or [""]
    if not more or entry.kind != "verdict":
        return first.strip()
    return f"{first.strip()} …):{more[-1].rpartition('):')[2]}"


def lives_table(lives: Sequence[LifeView]) -> list[str]:
    """The lines of a table of what did not just run to its end: who was judged, and who lived again."""
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


def totals(counters: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """A line for the job's retries and one for its replicas' restarts, where there were any."""
    for what in ("retries", "restarts"):
        if told := counted(counters.get(what, {}).items()):
            yield f"{what.capitalize()}: {told}"


def _life(attempt: int, replica: Mapping[str, Any], found: Mapping[str, Any]) -> LifeView:
    verdict: Mapping[str, Any] = found["verdict"] or {}
    effect = str(verdict.get("effect", ""))
    said = next((text for known, text in _EFFECTS.items() if known == effect), effect)
    of = f" {verdict['count']} of {verdict['budget']}" if verdict.get("budget") else ""
    return LifeView(
        attempt,
        replica["id"],
        replica["task"],
        found["incarnation"],
        found["node"],
        parse_moment(found["startTime"]),
        parse_moment(found["endTime"]),
        "lost" if found["lost"] else how(found["exit"] or {}),
        effect,
        f"{verdict['rule']}: {said}{of}" if verdict else "",
    )


def _heading(attempt: AttemptView) -> str:
    lasted = f"  {duration(attempt.ended - attempt.started)}" if attempt.ended else "  goes on"
    rule = f", ended by {attempt.rule}" if attempt.rule else ""
    return click.style(f"Attempt {attempt.number}", bold=True) + faint(lasted + rule)


def _line(entry: TimelineView, row: list[str]) -> str:
    row[0], row[1] = faint(row[0]), faint(row[1])
    colour = entry_colour(entry.kind, entry.effect)
    if colour:
        row[2:] = [click.style(cell, fg=colour) for cell in row[2:]]
    return joined(row)
