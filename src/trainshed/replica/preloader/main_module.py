"""How the machinery of `-m` goes on with a program's module in place of the one that it was started for.

It asks for the module `program` of this package, which there is none of. What answers is put in the way once
it is known what is to be run, and answers with that. So nothing but that machinery is beneath the program on
the stack, and it ends as any other does. Runs on Python 3.6.
"""

import inspect
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Sequence

_PLACEHOLDER = "trainshed.replica.preloader.program"


def go_on_with(module: str, arguments: "list[str]") -> None:
    """Have `module` run when this package's import has returned. `arguments`: sys.argv."""
    # A namespace of its own: the one that there is counts as older than all garbage, so what a program leaves
    # in it would not be finalized.
    main = types.ModuleType("__main__")
    main.__dict__.update(sys.modules["__main__"].__dict__)
    if "__annotations__" in main.__dict__:
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    sys.meta_path.insert(0, _Main(module, arguments))


class _Main:
    """Finds and loads one module, once."""

    def __init__(self, module: str, arguments: "list[str]") -> None:
        self._module = module
        self._arguments = arguments
        self._spec: "ModuleSpec | None" = None

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "Any" = None
    ) -> "ModuleSpec | None":
        """As a finder of `sys.meta_path`."""
        if name != _PLACEHOLDER:
            return None
        from importlib.machinery import ModuleSpec

        self._spec = ModuleSpec(name, self)  # type: ignore[arg-type]
        return self._spec

    def get_code(self, name: str) -> "types.CodeType":
        """The program's; the specification that was found becomes the program's as well."""
        import runpy

        assert self._spec is not None
        machinery: "Any" = runpy
        sys.meta_path.remove(self)
        sys.argv[:] = self._arguments
        _forget_us()
        try:
            _, spec, code = machinery._get_module_details(self._module, machinery._Error)
        except (machinery._Error, SystemExit):
            raise
        except BaseException as error:  # What a package's own import raises, shown as it would be.
            error.__traceback__ = _without_us(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
            raise SystemExit(1) from None
        self._spec.__dict__.clear()
        self._spec.__dict__.update(spec.__dict__)
        return code


def _forget_us() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "trainshed"]:
        del sys.modules[name]


def _without_us(trace: "types.TracebackType | None") -> "types.TracebackType | None":
    """The trace of an error as it is without this package: the frame of `-m` itself, then what it called."""
    frame = inspect.currentframe()
    outermost = frame
    while frame is not None:
        outermost, frame = frame, frame.f_back
    below = trace.tb_next if trace is not None else None
    if sys.version_info < (3, 7) or outermost is None:
        return below
    return types.TracebackType(below, outermost, outermost.f_lasti, outermost.f_lineno)
