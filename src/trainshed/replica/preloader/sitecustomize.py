"""Turns a starting interpreter into a preloader: `site` imports this module during the start, because this
package's directory is in PYTHONPATH.

At this early point nothing stays on the stack beneath the program that the interpreter's main function runs
later (`main_program`). A `sitecustomize` of the interpreter's own runs first. Runs on Python 3.6.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGURATION = "TRAINSHED_PRELOADER"


def _own() -> "ModuleType | None":
    """Import the interpreter's own `sitecustomize`, if any."""
    sys.path[:] = [path for path in sys.path if path != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    this = sys.modules.pop(__name__)
    try:
        import sitecustomize as own  # type: ignore  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    finally:
        # The import system, which is importing this module, expects it here.
        sys.modules[__name__] = this
    return own


def _serve() -> None:
    """Run as a preloader; only forked programs return."""
    own = _own()
    # The next imports are ours; `forking` removes the directory again.
    sys.path.insert(0, _HERE.rpartition(os.path.join("trainshed", "replica", "preloader"))[0])
    from trainshed.replica.preloader import forking

    forking.serve(os.environ[CONFIGURATION], own)


if CONFIGURATION in os.environ:
    try:
        _serve()
    except BaseException as error:  # `site` would continue the start, but there is no program.
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
