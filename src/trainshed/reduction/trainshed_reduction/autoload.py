"""The entry point that `import torch` calls (group torch.backends): puts the reducers in, where the job has
some.

Whatever happens here, `import torch` goes on: PyTorch turns an exception of an entry point into its own
failure.
"""

import contextlib
import os
import sys

under_way: "list[bool]" = []
"""Not empty while `trainshed_reduction.pytorch` is imported for the override alone."""


def autoload() -> None:
    """Does nothing without TRAINSHED_REDUCERS, and raises nothing but what ends the process anyway."""
    if not os.environ.get("TRAINSHED_REDUCERS"):
        return
    fault = ""
    if os.environ.get("TRAINSHED_REDUCTION") != "off":
        under_way.append(True)
        try:
            from trainshed_reduction.pytorch import override

            override.install()
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # SystemExit included: `import torch` of somebody's program must not fail for want of reducers.
            text = "not usable here ({}: {}): native all-reduce is used"
            fault = text.format(type(error).__name__, error)
        finally:
            under_way.clear()
    try:
        from trainshed_reduction import process

        if fault:
            process.tell("native", fault, "WARNING")
        elif os.environ.get("RANK", "0") == "0":
            # Where the service reads it alone: its reducers will say that nobody comes.
            process.reports().note("off", "native all-reduce is used: TRAINSHED_REDUCTION is off")
    except Exception:  # Not even that is whole.
        with contextlib.suppress(Exception):  # There may be no standard error.
            sys.stderr.write("trainshed reduction: {}\n".format(fault or "off"))
