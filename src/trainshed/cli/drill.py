"""`trainshed drill`: orders a fault for a job, tells what happens, and ends in the resume report."""

from collections.abc import Mapping
from typing import Any

import click

from trainshed.cli.client import Client
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.drill_report import drill_lines, takes_step_pattern
from trainshed.cli.following import follow
from trainshed.cli.logs import line_text, prefix_width
from trainshed.cli.moments import parse_moment
from trainshed.cli.progress import story_line
from trainshed.cli.references import find_job, job_path
from trainshed.cli.views import JobView, LogLine, TimelineView
from trainshed.core.lifecycle.drills import DrillKind

_SHOWN = 20
"""So many lines of the program are shown after the restart."""
_EAGER = 50
_PAUSE = 500_000_000
"""After so many lines the report is asked for at most so often (ns)."""


@click.command()
@click.argument("job")
@click.option(
    "--kind",
    type=click.Choice([kind.value for kind in DrillKind]),
    required=True,
    help="What is to happen to it.",
)
@click.option(
    "--replica",
    metavar="REPLICA",
    help="To which replica, such as workerpool1-0; else the primary.",
)
@click.option("--at-line", metavar="REGEX", help="When a line of the replica matches.")
@click.option("--after", metavar="TIME", help="When the replica has run for so long, such as 30s.")
@click.option(
    "--wait/--no-wait",
    default=True,
    show_default=True,
    help="Wait until it is known what came of it.",
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
    """Do to a running job what can happen to it, and see whether it goes on where it was.

    The fault comes at once, or --at-line, or --after. The exit status is 1 if the job started over, 130 after Ctrl-C (the
    drill stays ordered).
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
