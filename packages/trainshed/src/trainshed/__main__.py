"""The `trainshed` command, and `python -m trainshed`: the commands that build services, and all others from
the cli package."""

import errno
import os
import select
import signal

import click

from trainshed.cli.commands import Group, register
from trainshed.serve import clock

_COMMANDS = (
    ("up", "trainshed.serve.up", "Start the service."),
    ("runtimes", "trainshed.serve.runtimes", "List, build and clear cached runtimes."),
    ("doctor", "trainshed.serve.doctor", "Show what this machine lets a service do."),
    ("backup", "trainshed.serve.backup.take", "Back up a data directory while jobs run."),
    ("restore", "trainshed.serve.backup.restore", "Restore a backup into an empty data directory."),
)
"""As in `cli.commands`: loaded when they are used, since loading what they need takes longer than showing
help."""
_NAME = "trainshed"


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog='A first look: trainshed up, eval "$(trainshed env)", gcloud ai custom-jobs list.',
)
@click.version_option(package_name="trainshed", prog_name="trainshed")
def group() -> None:
    """Trainshed runs training jobs sent by the clients of AI Platform Training and Vertex AI."""


register(group, clock.now, _COMMANDS)


def main() -> None:
    try:
        group(prog_name=_NAME)
    except SystemExit as end:
        if end.code == 1 and _reader_has_left():
            # The reader wants no more (`| head`), which does not mean that the command failed.
            raise SystemExit(128 + signal.SIGPIPE) from None
        raise
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == _NAME:
            raise
        raise SystemExit(
            f"Error: This needs the service, and only its client is installed ({missing.name} is missing): "
            "pip install 'trainshed[service]'"
        ) from None
    except UnicodeEncodeError as failure:
        raise SystemExit(
            f"Error: {str(failure.object)[:80]!r} is not UTF-8, and has to be."
        ) from None
    except OSError as failure:
        if isinstance(failure, PermissionError) and failure.filename:
            raise SystemExit(
                f"Error: {failure.filename}: {failure.strerror}. Run this as the user that it belongs to."
            ) from None
        if failure.errno != errno.ENOSPC or failure.filename:
            raise
        raise SystemExit("Error: The output cannot be written: no space is left there.") from None
    except RuntimeError as failure:
        if "HOME" in os.environ or "home directory" not in str(failure):
            raise
        raise SystemExit(
            f"Error: The user {os.geteuid()} has no home directory here. Set HOME to a directory of its own."
        ) from None


def _reader_has_left() -> bool:
    """Whether standard output is a pipe that nobody reads any more."""
    looked = select.poll()
    looked.register(1, 0)
    return any(event & select.POLLERR for _, event in looked.poll(0))


if __name__ == "__main__":
    main()
