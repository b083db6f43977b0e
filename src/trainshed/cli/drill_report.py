"""`trainshed jobs resume-report`: what drills did to a job, in lines. Also how other commands show the report."""

import json
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any

import click

from trainshed.cli.colours import faint
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.moments import duration, local_clock, parse_moment
from trainshed.cli.references import find_job, job_path
from trainshed.cli.tables import pairs

_COLOURS = {"resumed": "green", "started_over": "red", "unknown": "yellow"}
_RESULTS = {"PASS": "green", "FAIL": "red"}
_SECOND = 10**9

takes_step_pattern = click.option(
    "--step-pattern",
    metavar="REGEX",
    help="Which lines tell the step; the first group is its number. Else lines like `step 120` are found.",
)


@click.command()
@click.argument("job")
@takes_step_pattern
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="For people, or JSON for programs.",
)
@takes_endpoint
def command(endpoint: Endpoint, *, job: str, step_pattern: str | None, form: str) -> None:
    """Say what each drill of a job did to it, and whether it went on where it was.

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
