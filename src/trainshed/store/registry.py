"""Opens a store by the name of its dialect, so that no room imports an adapter's inside."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import cast

from trainshed.store.port import Store

_OPENERS = {
    "sqlite": "trainshed.store.sqlite.database",
    "inline": "trainshed.store.sqlite.inline",
}


def open_store(dialect: str, directory: Path) -> Store:
    """Open (and create or upgrade) the store that lives in `directory`. Blocks; call it before serving.

    "inline" is for simulations: it lives in memory and ends with its `close`. Raises StoreInUse, StoreTooNew, ValueError (no such dialect).
    """
    if dialect not in _OPENERS:
        known = ", ".join(sorted(_OPENERS))
        raise ValueError(f"there is no store {dialect!r}; choose one of: {known}")
    module = import_module(_OPENERS[dialect])
    opener = cast("Callable[[Path], Store]", module.open_database)
    return opener(directory)
