"""`trainshed drill`: injects a fault into a job and shows its recovery, or prints the results of earlier
drills."""

import time

import click

from trainshed.cli.client import Client
from trainshed.cli.connection import Endpoint, endpoint_options
from trainshed.cli.jobs.follow import Entries
from trainshed.cli.jobs.references import find_job, job_argument, job_path
from trainshed.cli.jobs.views import JobView
from trainshed.cli.jobs.watch import timeline_line
from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.moments import parse_moment
from trainshed.cli.text.tables import pairs
from trainshed.core.lifecycle.records import DrillKind
from trainshed.wire.trainshed_v1.record import read, to_builtins
from trainshed.wire.trainshed_v1.timeline import Drill, ResumeFinding, ResumeReport

_POLL_INTERVAL = 0.5
"""Seconds between two polls of the job."""


@click.command()
@job_argument
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in DrillKind]),
    help="Fault to inject. Without this option, report the result of each earlier drill.",
)
@click.option(
    "--replica",
    metavar="REPLICA",
    help="Replica to inject the fault into, such as workerpool1-0. Default: the primary.",
)
@click.option(
    "--at-line",
    metavar="REGEX",
    help="Inject the fault when a log line of the replica matches. Default: inject it at once.",
)
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Wait until the job recovers or fails."
)
@output_format("text", "Report as text, or JSON for programs.")
@endpoint_options
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
    """Inject a fault into a running job and report whether it resumed. Without --kind, report the result of
    each drill of the job.

    The fault is injected at once, or at the line that --at-line matches. The exit status is 1 if the job
    started over, and 130 after Ctrl-C (the drill is not cancelled).
    """
    if kind is None:
        if replica or at_line:
            raise click.UsageError("The kind of fault is missing. Add --kind, such as --kind kill.")
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
        click.echo(f"To see the result: trainshed drill {target.job_id}", err=is_data)
        if is_data:
            print_data(to_builtins(ResumeFinding(drill=drill)))
        return
    try:
        finding = _watch(client, target, drill, is_data=is_data)
    except KeyboardInterrupt:
        click.echo(
            f"The drill is not cancelled. To see its result: trainshed drill {target.job_id}", err=True
        )
        raise SystemExit(130) from None
    if is_data:
        print_data(to_builtins(finding))
    else:
        click.echo("\n".join(["", *_lines(finding)]))
    if finding.outcome == "started_over":
        raise SystemExit(1)


def _watch(client: Client, job: JobView, drill: Drill, *, is_data: bool) -> ResumeFinding:
    """Print the events of the job since the drill (a fault) was ordered, until the drill has a result or the
    job has finished. Return the resume report's finding about the drill. `is_data`: whether standard output
    is for data, so that events are printed to standard error."""
    ordered, entries = parse_moment(drill.order_time), Entries(client, job.uid)
    nothing = ResumeFinding(drill=drill, why="the service has not started it yet")
    while True:
        is_over = JobView.parse(client.get(job_path(job.uid))).state.is_final
        for entry in entries.read_new():
            if parse_moment(entry.at) >= ordered:
                click.echo(timeline_line(entry), err=is_data)
        report = read(client.get(job_path(job.uid, "/resumeReport")), ResumeReport)
        ours = (part for part in report.drills if part.drill.order_time == drill.order_time)
        finding = next(ours, nothing)
        has_steps = finding.step_before is None or finding.step_after is not None
        # Poll again until the program has restarted. If it had reported a step before the fault, also wait
        # until it reports a step after the restart.
        if is_over or (finding.restart_time and has_steps):
            return finding
        time.sleep(_POLL_INTERVAL)


def _report(endpoint: Endpoint, job: str, form: str) -> None:
    """Print the result of each drill (injected fault) of a job. Raises SystemExit if the job started over
    after one of them."""
    client = endpoint.client(raw=form == "json")
    uid = find_job(client, job, endpoint.project)["uid"]
    answer = client.get(job_path(uid, "/resumeReport"))
    report = read(answer, ResumeReport)
    if form == "json":
        print_data(answer)
    elif report.drills:
        for finding in report.drills:
            click.echo("\n".join([*_lines(finding), ""]))
        click.echo(f"Report  {report.result}")
    else:
        click.echo(f"No fault was injected into this job. Inject one: trainshed drill {job} --kind kill")
    if report.result == "FAIL":
        raise SystemExit(1)


def _lines(finding: ResumeFinding) -> list[str]:
    """Return the lines of the report about one drill (injected fault)."""
    outcome = finding.outcome.replace("_", " ") or finding.why
    if finding.lost is not None:
        outcome += f", {finding.lost} {finding.unit}{'s' * (finding.lost != 1)} lost"
    facts = [(f"Drill {finding.drill.number}", f"{finding.drill.kind} of {finding.drill.task}")]
    if finding.verdict:
        effect, rule = (str(finding.verdict.details.get(key)) for key in ("effect", "rule"))
        facts.append(("Decided", f"{effect.replace('_', ' ')} by the rule {rule}"))
    if finding.restart_time:
        facts.append(("Down", f"{finding.down_seconds or 0:.2f}s to the next start"))
    if finding.step_before is not None:
        after = "none" if finding.step_after is None else finding.step_after
        facts.append(("Steps", f"{finding.step_before} before, {after} after"))
    facts.append(("Outcome", outcome))
    if finding.outcome and finding.advice:
        facts.append(("Advice", finding.advice.partition(": ")[2]))
    return pairs(facts)
