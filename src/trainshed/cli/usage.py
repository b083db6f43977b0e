"""`trainshed jobs top`: what the replicas of a job use, now and at most; also what of it `jobs describe` tells."""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from trainshed.cli.client import Client, Refused
from trainshed.cli.commands import Session
from trainshed.cli.connection import Endpoint, takes_endpoint
from trainshed.cli.forms import takes_form
from trainshed.cli.reduction_table import reduction_lines
from trainshed.cli.references import find_job, job_path
from trainshed.cli.usage_table import UsedView, hint_lines, summary_table, usage_lines
from trainshed.cli.views import JobView
from trainshed.core.lifecycle.states import JobState

_LOOK_AGAIN = 2.0
"""Seconds between two looks; replicas are looked at less often than that."""
_SHOWN = 24
"""Points of a line of blocks."""


@click.command()
@click.argument("job")
@click.option("--watch", is_flag=True, help="Go on until the job is over.")
@click.option("--attempt", type=click.IntRange(min=1), help="Of an earlier attempt.")
@takes_form
@takes_endpoint
@click.pass_obj
def command(
    session: Session, endpoint: Endpoint, *, job: str, watch: bool, attempt: int | None, form: str
) -> None:
    """Show what the replicas of a job use: processors, memory, disk and GPUs, now and at most.

    CPU is in per cent of the vCPUs that were asked for; MEMORY leaves out files that are only cached; DISK is what a
    replica's own files take.
    """
    if watch and (attempt or form == "json"):
        raise click.UsageError("--watch goes with neither --attempt nor --format json.")
    client = endpoint.client(raw=form == "json")
    uid = JobView.parse(find_job(client, job, endpoint.project)).program.uid

    def look() -> dict[str, Any]:
        found: dict[str, Any] = client.get(
            job_path(uid, "/usage"), attempt=attempt, points=None if form == "json" else _SHOWN
        )
        return found

    if form == "json":
        click.echo(json.dumps(look(), indent=2))
    elif watch:
        _watch(look, session.now)
    else:
        for line in _lines(look(), session.now()):
            click.echo(line)


def describe_lines(client: Client, job: JobView) -> list[str]:
    """What `jobs describe` says of the use that a job made of its machines: [] as long as nothing is known."""
    program = job.program
    if not any(replica.started for replica in program.replicas):
        return []
    try:
        found: dict[str, Any] = client.get(job_path(program.uid, "/usage"), points=0)
    except Refused as refused:
        if refused.status == 404:
            return []  # A service that is older than this command.
        raise
    replicas = [each for each in map(UsedView.parse, found["replicas"]) if each.seen]
    if not replicas:
        return []
    return ["", *summary_table(replicas), *reduction_lines(found), *hint_lines(found)]


def _lines(found: Mapping[str, Any], now: int) -> list[str]:
    return [*usage_lines(found, now), *reduction_lines(found)]


def _watch(look: Callable[[], dict[str, Any]], now: Callable[[], int]) -> None:
    """Show it again and again until the job is over: drawn over on a terminal, else whenever there is something new."""
    try:
        if sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb"):
            _draw(look, now)
        else:
            _print(look, now)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _print(look: Callable[[], dict[str, Any]], now: Callable[[], int]) -> None:
    shown: list[Any] = []
    while True:
        found = look()
        seen = [
            (each["state"], each["sampleTime"], each.get("reduction", {}).get("sampleTime"))
            for each in found["replicas"]
        ]
        if seen != shown:
            for line in [*([""] if shown else []), *_lines(found, now())]:
                click.echo(line)
            shown = seen
        if _is_over(found):
            return
        time.sleep(_LOOK_AGAIN)


def _draw(look: Callable[[], dict[str, Any]], now: Callable[[], int]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            found = look()
            text = Text.from_ansi("\n".join(_lines(found, now())))
            text.no_wrap = True
            live.update(text, refresh=True)
            if _is_over(found):
                return
            time.sleep(_LOOK_AGAIN)


def _is_over(found: Mapping[str, Any]) -> bool:
    return JobState(found["state"]).is_final
