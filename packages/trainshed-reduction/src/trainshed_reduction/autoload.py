"""The entry point that `import torch` calls (group torch.backends). It enables reducers if the job has some.

Nothing here may raise: PyTorch turns an exception of an entry point into a failure of `import torch`.
"""

import contextlib
import os
import sys


def autoload() -> None:
    """Install the override of PyTorch's process groups if TRAINSHED_REDUCERS is set. Raises only
    KeyboardInterrupt."""
    if not os.environ.get("TRAINSHED_REDUCERS"):
        return
    fault = ""
    if os.environ.get("TRAINSHED_REDUCTION") != "off":
        try:
            from trainshed_reduction.pytorch import group

            group.install()
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Catch even SystemExit: `import torch` must not fail because of reducers.
            text = "reducers are unusable ({}: {}): native all-reduce is used"
            fault = text.format(type(error).__name__, error)
    try:
        from trainshed_reduction import process

        if fault:
            process.report("native", fault, "WARNING")
        elif os.environ.get("RANK", "0") == "0":
            # This note shows the reason on the job's timeline. Without it, the job would only show that no
            # worker connects to its reducers.
            process.reports().add_note("off", "native all-reduce is used: TRAINSHED_REDUCTION is off")
    except Exception:  # The report to the service failed, so use standard error.
        with contextlib.suppress(Exception):  # Ignore failures: standard error may not exist.
            sys.stderr.write("trainshed reduction: {}\n".format(fault or "off"))
