"""`trainshed drill`: orders a fault for a job and tells what happens; `trainshed jobs resume-report`: what
drills did."""

import json
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any

import click

from trainshed.cli.client import Client
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.follow import follow
from trainshed.cli.jobs.logs import line_text, prefix_width
from trainshed.cli.jobs.references import find_job, job_path
from trainshed.cli.jobs.views import JobView, LogLine, TimelineView
from trainshed.cli.jobs.watch import story_line
from trainshed.cli.text.colours import faint
from trainshed.cli.text.moments import duration, local_clock, parse_moment
from trainshed.cli.text.tables import pairs
from trainshed.core.lifecycle.drills import DrillKind

_SHOWN = 20
"""So many lines of the program are shown after the restart."""
_EAGER = 50
_PAUSE = 500_000_000
"""After so many lines the report is asked for at most so often (ns)."""


_COLOURS = {"resumed": "green", "started_over": "red", "unknown": "yellow"}

_RESULTS = {"PASS": "green", "FAIL": "red"}

_SECOND = 10**9

takes_step_pattern = click.option(
    "--step-pattern",
    metavar="REGEX",
    help="Lines that tell the step; the first group is its number. Default: lines like `step 120`.",
)


@click.command()
@click.argument("job")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in DrillKind]),
    required=True,
    help="Fault to inject.",
)
@click.option(
    "--replica",
    metavar="REPLICA",
    help="Replica to hit, such as workerpool1-0. Default: the primary.",
)
@click.option("--at-line", metavar="REGEX", help="Inject it when a line of the replica matches.")
@click.option("--after", metavar="TIME", help="Inject it when the replica has run this long: 30s.")
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Wait until the job recovered or failed.",
)
@takes_step_pattern
@takes_endpoint
@click.pass_obj
def command(
    session: Session,
    endpoint: Endpoint,
    *,
    job: str,
    kind: str,
    replica: str | None,
    at_line: str | None,
    after: str | None,
    wait: bool,
    step_pattern: str | None,
) -> None:
    """Inject a fault into a running job and report whether it resumed where it was.

    The fault comes at once, or --at-line, or --after. The exit status is 1 if the job started over, 130 after
    Ctrl-C (the drill stays ordered).
    """
    if at_line and after:
        raise click.UsageError("A drill waits for a line or for a time: give --at-line or --after.")
    client = endpoint.client()
    found = JobView.parse(find_job(client, job, endpoint.project))
    if step_pattern:
        # Whether it can be used is to be known before anything is done to the job.
        client.get(job_path(found.uid, "/resumeReport"), stepPattern=step_pattern)
    order = {"kind": kind, "replica": replica, "atLine": at_line, "after": after}
    body = {name: value for name, value in order.items() if value}
    ordered: dict[str, Any] = client.post(job_path(found.uid, ":drill"), body)
    click.echo(f"Drill {ordered['number'] or ''}".rstrip() + f": {kind} of {ordered['task']}")
    if not wait:
        click.echo(f"What comes of it: trainshed jobs resume-report {found.id}")
        return
    watch = _Watch(client, found, ordered, step_pattern, session)
    try:
        report = watch.until_known()
    except KeyboardInterrupt:
        click.echo(
            f"The drill stays ordered. What comes of it: trainshed jobs resume-report {found.id}",
            err=True,
        )
        raise SystemExit(130) from None
    click.echo()
    for line in drill_lines(report):
        click.echo(line)
    if report["outcome"] == "started_over":
        raise SystemExit(1)


class _Watch:
    """Waits for what comes of one drill, and tells meanwhile what happens."""

    def __init__(
        self,
        client: Client,
        job: JobView,
        ordered: Mapping[str, Any],
        step_pattern: str | None,
        session: Session,
    ) -> None:
        self._client = client
        self._job = job
        self._ordered = ordered
        self._step_pattern = step_pattern
        self._now = session.now

    def until_known(self) -> Mapping[str, Any]:
        """The drill's part of the report, as soon as no more can be known or the job is over."""
        report = self._until_up()
        # Where it has told a step already its first lines are there to be shown, however late this looks.
        if report.get("restart") and (report["steps"]["after"] or not _is_known(report)):
            self._until_step(report["restart"]["at"])
        return self._report()

    def _until_up(self) -> Mapping[str, Any]:
        """Until what was hit runs again, or never will."""
        ordered = parse_moment(self._ordered["orderTime"])
        report: Mapping[str, Any] = self._report()
        for update in follow(self._client, self._job.uid, lines=False):
            if isinstance(update, TimelineView) and update.at >= ordered:
                click.echo(story_line(update))
            elif isinstance(update, JobView):
                report = self._report()
                if report.get("restart"):
                    return report
        return report

    def _until_step(self, restart: str) -> None:
        """Until the program has told a step, or can tell no more."""
        width = prefix_width(self._job)
        tasks = {replica.id: replica.task for replica in self._job.replicas}
        asked = 0
        path = job_path(self._job.uid, "/logs")
        with self._client.stream(path, follow="true", since=restart) as lines:
            for number, found in enumerate(lines):
                line = LogLine.parse(found)
                if number < _SHOWN:
                    click.echo(line_text(line, tasks.get(line.replica, line.replica), width))
                if number < _EAGER or self._now() - asked > _PAUSE:
                    asked = self._now()
                    if _is_known(self._report()):
                        return

    def _report(self) -> Mapping[str, Any]:
        """What is reported of the drill now."""
        path = job_path(self._job.uid, "/resumeReport")
        drills: list[dict[str, Any]] = self._client.get(path, stepPattern=self._step_pattern)[
            "drills"
        ]
        for found in drills:
            drill = found["drill"]
            if drill["number"] == self._ordered["number"]:
                return found
            if not self._ordered["number"] and drill["orderTime"] == self._ordered["orderTime"]:
                return found
        # The service has not taken it up yet.
        return {"drill": self._ordered, "outcome": "", "why": "it is not taken up yet"}


def _is_known(report: Mapping[str, Any]) -> bool:
    """Whether waiting for more lines would tell no more."""
    if not report.get("restart"):
        return False
    steps = report["steps"]
    return not steps["before"] or bool(steps["after"])


@click.command()
@click.argument("job")
@takes_step_pattern
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Output as text, or JSON for programs.",
)
@takes_endpoint
def report(endpoint: Endpoint, *, job: str, step_pattern: str | None, form: str) -> None:
    """Report what each drill did to a job, and how it recovered.

    The exit status is 1 if the job started over after one of them.
    """
    client = endpoint.client(raw=form == "json")
    uid = find_job(client, job, endpoint.project)["uid"]
    report: dict[str, Any] = client.get(job_path(uid, "/resumeReport"), stepPattern=step_pattern)
    if form == "json":
        click.echo(json.dumps(report, indent=2))
    elif report["drills"]:
        for line in report_lines(report):
            click.echo(line)
    else:
        click.echo(f"This job has had no drill. Order one: trainshed drill {job} --kind kill")
    if report["result"] == "FAIL":
        raise SystemExit(1)


def report_lines(report: Mapping[str, Any], zone: tzinfo | None = None) -> list[str]:
    """A whole report, in the end its result."""
    lines: list[str] = []
    for found in report["drills"]:
        lines += [*drill_lines(found, zone), ""]
    result: str = report["result"]
    return [*lines, "Report  " + click.style(result, fg=_RESULTS.get(result, "yellow"), bold=True)]


def drill_lines(found: Mapping[str, Any], zone: tzinfo | None = None) -> list[str]:
    """What is reported of one drill."""
    drill = found["drill"]
    fired = parse_moment(drill["fireTime"])
    what = f"{drill['kind']} of {drill['task']}"
    if not found["outcome"]:
        return pairs([(f"Drill {drill['number']}", what), ("Outcome", found["why"])])
    facts = [
        (f"Drill {drill['number']}", f"{what} at {local_clock(fired, zone)}"),
        ("Decided", _decided(found["verdict"])),
        ("Down", _down(found)),
        ("Written", _written(found["checkpoints"], fired)),
        ("Read", _read(found["checkpoints"], restarted=found["restart"] is not None)),
        ("Steps", _steps(found["steps"])),
        ("Outcome", _outcome(found)),
        ("Advice", found["advice"].partition(": ")[2]),
    ]
    return pairs([(label, value) for label, value in facts if value])


def _decided(verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return "nothing yet"
    of = f" ({verdict['count']} of {verdict['budget']})" if verdict["budget"] else ""
    return f"{verdict['effect'].replace('_', ' ')}{of}, by the rule {verdict['rule']}"


def _down(found: Mapping[str, Any]) -> str:
    if found["restart"] is None:
        return ""
    text = f"{duration(round(found['downSeconds'] * _SECOND))} to the next start"
    if found["silentSeconds"] is not None:
        text += f", {duration(round(found['silentSeconds'] * _SECOND))} to its first line"
    again = found["restart"]
    return text + faint(f"  (attempt {again['attempt']}, incarnation {again['incarnation']})")


def _written(files: Mapping[str, Any], fired: int) -> str:
    written = files["written"]
    if not written:
        return f"unknown: {files['unknown']}" if files["unknown"] else "nothing before the fault"
    last, count = written[0], files["writtenCount"]
    ago = duration(fired - parse_moment(last["at"]))
    more = f", the last of {count} files" if count > 1 else ""
    return f"{last['uri']} ({_bytes(last['bytes'])}) {ago} before{more}"


def _read(files: Mapping[str, Any], *, restarted: bool) -> str:
    if not restarted:
        return ""
    if not files["read"]:
        # What was not seen to be written cannot be told when it is read.
        return "unknown" if files["unknown"] else "nothing that was written before"
    return "\n".join(f"{file['uri']} ({_bytes(file['bytes'])})" for file in files["read"])


def _steps(steps: Mapping[str, Any]) -> str:
    if steps["before"] is None:
        return ""
    after = steps["after"]
    text = f"{steps['before']['number']} before, {after['number'] if after else 'none'} after"
    first = f"the first ever was {steps['first']['number']}" if steps["first"] else ""
    whose = ", ".join(part for part in (first, steps["replica"]) if part)
    return text + faint(f"  ({whose})") if whose else text


def _outcome(found: Mapping[str, Any]) -> str:
    outcome = found["outcome"]
    told = click.style(outcome.replace("_", " "), fg=_COLOURS.get(outcome), bold=True)
    if found["lost"] is None:
        return told
    return f"{told}, {found['lost']} {found['unit']}{'s' * (found['lost'] != 1)} lost"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
