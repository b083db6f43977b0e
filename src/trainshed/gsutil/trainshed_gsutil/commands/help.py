"""`help` prints the commands; so does gsutil without a command."""

from trainshed_gsutil import commands
from trainshed_gsutil.commands.context import Context

_USAGE = """\
Usage: gsutil [-D] [-h header]... [-m] [-o section:name=value]... [-q] [-u project] \
COMMAND [options] [arguments]

Storage of the job that this runs in, by the job's identity.
Commands: %s
"""


def run(context: Context) -> int:
    context.output.result(_USAGE % " ".join(commands.names()), end="")
    return 0
