"""`trainshed drill`: orders a fault for a job and shows what happens, or reports what drills did."""

import time

import click

from trainshed.cli.client import Client
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.jobs.follow import Patience, follow
from trainshed.cli.jobs.references import find_job, job_path, takes_job
from trainshed.cli.jobs.views import JobView
from trainshed.cli.jobs.watch import timeline_line
from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.colours import faint
from trainshed.cli.text.moments import duration, local_clock, parse_moment
from trainshed.cli.text.tables import pairs
from trainshed.core.lifecycle.records import DrillKind
from trainshed.wire.trainshed_v1.record import plain, read
from trainshed.wire.trainshed_v1.timeline import (
    Drill,
    ResumeFinding,
    ResumeReport,
    Steps,
    TimelineEntry,
    Verdict,
)

_EAGER = 50
"""Lines after the restart at each of which the report is requested; later only once per `_PAUSE`."""
_PAUSE = 0.5
"""Seconds."""
_SECOND = 10**9


@click.command()
@takes_job
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in DrillKind]),
    help="Fault to inject. Without it: report what each drill did to the job.",
)
@click.option(
    "--replica",
    metavar="REPLICA",
    help="Replica to hit, such as workerpool1-0. Default: the primary.",
)
@click.option("--at-line", metavar="REGEX", help="Inject it when a line of the replica matches.")
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Wait until the job recovered or failed.",
)
@output_format("text", "Report as text, or JSON for programs.")
@takes_endpoint
def command(
    endpoint: Endpoint,
    *,
    job: str,
    kind: str | None,
    replica: str | None,
    at_line: str | None,
    wait: bool,
    form: str,
) -> None:
    """Inject a fault into a running job and report whether it resumed where it was; without --kind report
    what each drill did to it.

    The fault comes at once, or --at-line. The exit status is 1 if the job started over, 130 after
    Ctrl-C (the drill stays ordered).
    """
    if kind is None:
        if replica or at_line:
            raise click.UsageError("Say by --kind which fault it is to be.")
        _report(endpoint, job, form)
        return
    client = endpoint.client()
    target = JobView.parse(find_job(client, job, endpoint.project))
    order = {"kind": kind, "replica": replica, "atLine": at_line}
    body = {name: value for name, value in order.items() if value}
    drill = read(client.post(job_path(target.uid, ":drill"), body), Drill)
    is_data = form == "json"
    click.echo(f"Drill: {kind} of {drill.task}", err=is_data)
    if not wait:
        click.echo(f"What comes of it: trainshed drill {target.job_id}", err=is_data)
        if is_data:
            print_data(plain(ResumeFinding(drill=drill)))
        return
    try:
        finding = _watched(client, target, drill, is_data=is_data)
    except KeyboardInterrupt:
        click.echo(
            f"The drill stays ordered. What comes of it: trainshed drill {target.job_id}", err=True
        )
        raise SystemExit(130) from None
    if is_data:
        print_data(plain(finding))
    else:
        click.echo("\n".join(["", *drill_lines(finding)]))
    if finding.outcome == "started_over":
        raise SystemExit(1)


def _watched(client: Client, job: JobView, drill: Drill, *, is_data: bool) -> ResumeFinding:
    """Tell what happens to the job until the result of the drill is known or the job is over, and return what
    the resume report then says of it."""
    ordered = parse_moment(drill.order_time)
    path = job_path(job.uid, "/resumeReport")

    def finding() -> ResumeFinding:
        report = read(client.get(path), ResumeReport)
        for part in report.drills:
            if part.drill.order_time == drill.order_time:
                return part
        return ResumeFinding(drill=drill, why="it is not taken up yet")

    patience = Patience(client, job.uid, f"trainshed drill {job.job_id}")
    for update in follow(client, job.uid, patience, lines=False):
        if isinstance(update, TimelineEntry) and parse_moment(update.at) >= ordered:
            click.echo(timeline_line(update), err=is_data)
        elif isinstance(update, JobView) and finding().restart:
            break
    known = finding()
    if not known.restart or _is_known(known):
        return known
    # Each line of the program may tell the step that is missing.
    logs = {"follow": "true", "since": known.restart.at}
    looked = 0.0
    with client.stream(job_path(job.uid, "/logs"), **logs) as lines:
        for number, _ in enumerate(lines):
            if number < _EAGER or time.monotonic() - looked > _PAUSE:
                looked = time.monotonic()
                if _is_known(finding()):
                    break
    return finding()


def _is_known(finding: ResumeFinding) -> bool:
    """Whether further lines of the program would not change the finding."""
    steps = _steps_of(finding)
    return not steps.before or bool(steps.after)


def _steps_of(finding: ResumeFinding) -> Steps:
    return finding.steps or Steps()


def _report(endpoint: Endpoint, job: str, form: str) -> None:
    """Print what each drill did to a job. Raises SystemExit if the job started over after one of them."""
    client = endpoint.client(raw=form == "json")
    uid = find_job(client, job, endpoint.project)["uid"]
    answer = client.get(job_path(uid, "/resumeReport"))
    report = read(answer, ResumeReport)
    if form == "json":
        print_data(answer)
    elif report.drills:
        for line in report_lines(report):
            click.echo(line)
    else:
        click.echo(f"This job has had no drill. Order one: trainshed drill {job} --kind kill")
    if report.result == "FAIL":
        raise SystemExit(1)


def report_lines(report: ResumeReport) -> list[str]:
    """Return the lines of a whole report, with its result at the end."""
    lines: list[str] = []
    for finding in report.drills:
        lines += [*drill_lines(finding), ""]
    return [*lines, f"Report  {report.result}"]


def drill_lines(finding: ResumeFinding) -> list[str]:
    """Return the lines of a report about one drill."""
    drill = finding.drill
    fired = parse_moment(drill.fire_time)
    what = f"{drill.kind} of {drill.task}"
    if not finding.outcome:
        return pairs([(f"Drill {drill.number}", what), ("Outcome", finding.why)])
    facts = [
        (f"Drill {drill.number}", f"{what} at {local_clock(fired)}"),
        ("Decided", _decided(finding.verdict or None)),
        ("Down", _down(finding)),
        ("Steps", _steps(_steps_of(finding))),
        ("Outcome", _outcome(finding)),
        ("Advice", finding.advice.partition(": ")[2]),
    ]
    return pairs([(label, value) for label, value in facts if value])


def _decided(verdict: Verdict | None) -> str:
    if verdict is None:
        return "nothing yet"
    of = f" ({verdict.count} of {verdict.budget})" if verdict.budget else ""
    return f"{verdict.effect.replace('_', ' ')}{of}, by the rule {verdict.rule}"


def _down(finding: ResumeFinding) -> str:
    restart = finding.restart
    if not restart:
        return ""
    text = f"{duration(round((finding.down_seconds or 0) * _SECOND))} to the next start"
    if isinstance(finding.silent_seconds, float):
        text += f", {duration(round(finding.silent_seconds * _SECOND))} to its first line"
    return text + faint(f"  (attempt {restart.attempt}, incarnation {restart.incarnation})")


def _steps(steps: Steps) -> str:
    if steps.before is None:
        return ""
    after = steps.after.number if steps.after else "none"
    text = f"{steps.before.number} before, {after} after"
    first = f"the first ever was {steps.first.number}" if steps.first else ""
    whose = ", ".join(part for part in (first, steps.replica) if part)
    return text + faint(f"  ({whose})") if whose else text


def _outcome(finding: ResumeFinding) -> str:
    outcome, lost = finding.outcome, finding.lost
    text = outcome.replace("_", " ")
    if not isinstance(lost, int):
        return text
    return f"{text}, {lost} {finding.unit}{'s' * (lost != 1)} lost"
