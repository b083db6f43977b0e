"""The `trainshed` command: what builds services, and all others from the cli package."""

import select
import signal

import click

from trainshed.cli.commands import register
from trainshed.cli.groups import Group
from trainshed.serve import clock

_COMMANDS = (
    ("up", "trainshed.serve.up", "Start the service."),
    ("runtimes", "trainshed.serve.runtimes", "List, build and clear cached runtimes."),
    (
        "doctor",
        "trainshed.serve.doctor",
        "Show what this machine lets a service do.",
    ),
    ("backup", "trainshed.serve.backup.take", "Back up a data directory while jobs run."),
    (
        "restore",
        "trainshed.serve.backup.restore",
        "Restore a backup into an empty data directory.",
    ),
    (
        "local-run",
        "trainshed.serve.local_run.command",
        "Run one program as a replica would, without a service.",
    ),
)
"""As in `cli.commands`: loaded when they are used, since what they need takes longer to load than help
takes."""


_PIPE_CLOSED = 128 + signal.SIGPIPE
"""As a shell says of a command that its reader has left."""


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='A first look: trainshed demo. Then: trainshed up, eval "$(trainshed env)", gcloud ai custom-jobs '
    "list.",
)
@click.version_option(package_name="trainshed", prog_name="trainshed")
def group() -> None:
    """Trainshed runs training jobs sent by the clients of AI Platform Training and Vertex AI."""


register(group, clock.now, _COMMANDS)


def main() -> None:
    """Run the command line. Raises SystemExit."""
    try:
        group(prog_name="trainshed")
    except SystemExit as end:
        if end.code == 1 and _reader_has_left():
            # Who reads wants no more (`| head`), which says nothing of what was asked for.
            raise SystemExit(_PIPE_CLOSED) from None
        raise


def _reader_has_left() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    looked = select.poll()
    looked.register(1, 0)
    return any(event & select.POLLERR for _, event in looked.poll(0))
