"""Runs a command line and returns its exit status."""

import os
import sys

from trainshed_gsutil import commands, options
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import Failure
from trainshed_gsutil.output import Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

_INTERRUPTED = 130
_PIPE_CLOSED = 141


def main(argv: "Sequence[str]") -> int:
    """Run one command; returns the exit status."""
    output = Output()
    try:
        asked = options.split(argv)
        output = Output(asked.quiet)
        status = commands.find(asked.command)(Context(asked, output))
        sys.stdout.flush()
    except Failure as failure:
        output.error("%s: %s" % (failure.name, failure))
    except BrokenPipeError:
        # The reader of our output has closed it: discard what Python still buffers.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except OSError as failure:
        output.error(f"OSError: {failure}.")
    except KeyboardInterrupt:
        output.error("Caught CTRL-C (signal 2) - exiting")
        return _INTERRUPTED
    else:
        return status
    return 1
