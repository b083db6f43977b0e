"""`version` says which gsutil this is, in the form that scripts parse."""

import os
import platform

from trainshed_gsutil.commands.context import Context

STANDS_FOR = "5.34"
"""The release of Google's gsutil that it corresponds to."""


def run(context: Context) -> int:
    options, _ = context.parsed("l")
    context.output.result(f"gsutil version: {STANDS_FOR}")
    if options.has("l"):
        context.output.result("implementation: trainshed_gsutil, for programs of jobs")
        context.output.result("python version: %s" % platform.python_version())
        context.output.result("gsutil path: %s" % os.path.dirname(os.path.dirname(__file__)))
    return 0
