"""Imports some modules of a package without what the package's `__init__` would load."""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def sparsely(name: str, known: Mapping[str, str]) -> None:
    """Have a package's modules imported without its `__init__`, which runs only when somebody first asks for
    a name that it defines. `known` maps names that can be had without it to the modules that define them.
    Does nothing if the package was imported before. Raises ModuleNotFoundError."""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    class Sparse(ModuleType):
        def __getattr__(self, asked: str) -> Any:
            if asked in known:
                return getattr(importlib.import_module(known[asked]), asked)
            if asked.startswith("__") or spec.loader is None:
                raise AttributeError(asked)
            package.__class__ = ModuleType
            spec.loader.exec_module(package)
            return getattr(package, asked)

    package = importlib.util.module_from_spec(spec)
    package.__class__ = Sparse
    sys.modules[name] = package
