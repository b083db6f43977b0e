"""Where a preloader's interpreter becomes a preloader: `site` imports this while that comes up, because this
package's directory is in PYTHONPATH.

So early, all that is beneath it on the stack has ended when the interpreter's main function goes on
(`main_program`). A `sitecustomize` of the interpreter's own runs first. Runs on Python 3.6.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
CONFIGURATION = "TRAINSHED_PRELOADER"


def _own() -> "ModuleType | None":
    """That of the interpreter, run."""
    sys.path[:] = [path for path in sys.path if path != _HERE]
    sys.path_importer_cache.pop(_HERE, None)
    this = sys.modules.pop(__name__)
    try:
        import sitecustomize as own  # type: ignore  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    finally:
        # The machinery that imports this one wants to find it.
        sys.modules[__name__] = this
    return own


def _serve() -> None:
    """Returns in programs alone."""
    own = _own()
    first = set(sys.modules), set(sys.path_importer_cache)
    __import__("runpy")
    with_runner = set(sys.modules)
    # What follows is ours; `forking` takes the directory away again.
    sys.path.insert(0, _HERE.rpartition(os.path.join("trainshed", "replica", "preloader"))[0])
    from trainshed.replica.preloader import forking, imported

    forking.serve(os.environ[CONFIGURATION], own, imported.Imported(*first, with_runner))


if CONFIGURATION in os.environ:
    try:
        _serve()
    except BaseException as error:  # `site` would go on, and there is nothing to go on with.
        sys.excepthook(type(error), error, error.__traceback__)
        os._exit(1)
