"""The drill of `trainshed demo --drill`: the primary is killed between two checkpoints, and what comes of it is shown."""

from dataclasses import dataclass
from typing import Any, Final

import click

from trainshed.cli.client import Client
from trainshed.cli.drill_report import report_lines
from trainshed.cli.references import job_path
from trainshed.cli.views import JobView

_LINE: Final = "epoch 12/"
"""The program saves a checkpoint every five epochs."""
_SLOWER: Final = ("--epoch-seconds", "0.2", "--poll-seconds", "0.1")
"""So slow that the fault lands well before the next checkpoint, and the evaluator has read the last one by then."""


@dataclass(frozen=True, slots=True)
class DemoDrill:
    """`planted_bug`: the program forgets its checkpoints, and the report has to find that out."""

    planted_bug: bool

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the program is given besides."""
        return (*_SLOWER, *(("--planted-bug",) if self.planted_bug else ()))

    def order(self, client: Client, job: JobView) -> str:
        """Order the drill, and say what was ordered. Raises Refused, Unreachable."""
        order = {"kind": "kill", "replica": "workerpool0-0", "atLine": _LINE}
        ordered: dict[str, Any] = client.post(job_path(job.uid, ":drill"), order)
        bug = ", of a program with a resume bug" if self.planted_bug else ""
        return f"{ordered['kind']} of {ordered['task']} when it has done 12 epochs{bug}"

    def tell(self, client: Client, job: JobView) -> bool:
        """Show the report; whether it says what it has to. Raises Refused, Unreachable."""
        report: dict[str, Any] = client.get(job_path(job.uid, "/resumeReport"))
        click.echo()
        for line in report_lines(report):
            click.echo(line)
        expected = "FAIL" if self.planted_bug else "PASS"
        if report["result"] != expected:
            click.echo(f"The report should have said {expected}.", err=True)
            return False
        if self.planted_bug:
            click.echo(
                "The planted bug was found: this program forgets its checkpoints, and a drill says so."
            )
        return True
