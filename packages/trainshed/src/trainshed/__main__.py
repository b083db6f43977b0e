"""The `trainshed` command, and `python -m trainshed`. This module adds the commands that build services to
the commands of the `cli` package."""

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
    ("doctor", "trainshed.serve.doctor", "Check what a service can do on this machine."),
    ("backup", "trainshed.serve.backup.create", "Back up a data directory while jobs run."),
    ("restore", "trainshed.serve.backup.restore", "Restore a backup into an empty data directory."),
)
"""Rows as in `cli.commands`. A module is imported when its command is used, because the imports take longer
than showing help."""
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
            # The reader of the output has closed it (`| head`). This does not mean that the command failed.
            raise SystemExit(128 + signal.SIGPIPE) from None
        raise
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == _NAME:
            raise
        raise SystemExit(
            f"Error: This command needs the service, but only the client is installed ({missing.name} is "
            "missing). Install the service: pip install 'trainshed[service]'"
        ) from None
    except UnicodeEncodeError as failure:
        raise SystemExit(
            f"Error: {str(failure.object)[:80]!r} is not valid UTF-8. Use a text that is."
        ) from None
    except OSError as failure:
        if isinstance(failure, PermissionError) and failure.filename:
            raise SystemExit(
                f"Error: {failure.filename}: {failure.strerror}. Run the command as the owner of the file."
            ) from None
        if failure.errno != errno.ENOSPC or failure.filename:
            raise
        raise SystemExit(
            "Error: The output cannot be written: its disk is full. Free some space and try again."
        ) from None
    except RuntimeError as failure:
        if "HOME" in os.environ or "home directory" not in str(failure):
            raise
        raise SystemExit(
            f"Error: The user with the UID {os.geteuid()} has no home directory. Set HOME to a directory of "
            "this user."
        ) from None


def _reader_has_left() -> bool:
    """Return whether standard output is a pipe that no process reads any more."""
    looked = select.poll()
    looked.register(1, 0)
    return any(event & select.POLLERR for _, event in looked.poll(0))


if __name__ == "__main__":
    main()
