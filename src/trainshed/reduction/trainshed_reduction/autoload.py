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
    if os.environ.get("TRAINSHED_REDUCTION") == "off":
        _report_off()
        return
    under_way.append(True)
    try:
        from trainshed_reduction.pytorch import override

        override.install()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # SystemExit included: `import torch` of somebody's program must not fail for want of reducers.
        _tell("not usable here ({}: {})".format(type(error).__name__, error))
    finally:
        under_way.clear()


def _report_off() -> None:
    """Rank 0, where the service reads it: its reducers will say that nobody comes."""
    if os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(Exception):
            from trainshed_reduction import process

            text = "native all-reduce is used: TRAINSHED_REDUCTION is off"
            process.reports().note("off", text)


def _tell(text: str) -> None:
    text += ": native all-reduce is used"
    try:
        from trainshed_reduction import process

        process.tell("native", text, "WARNING")
    except Exception:  # Not even that is whole.
        with contextlib.suppress(Exception):  # There is no standard error, or it is closed.
            sys.stderr.write("trainshed reduction: {}\n".format(text))
