"""Tests of the local engine's service, run once more over one whose replicas are on a cluster's nodes."""

from collections.abc import Collection
from types import ModuleType
from typing import Any


def adopt(names: dict[str, Any], module: ModuleType, *, left_out: Collection[str] = ()) -> None:
    """Make a module's tests and fixtures those of the module with these global names, which has its own
    `service`."""
    for name, value in vars(module).items():
        if not name.startswith("__") and name not in left_out and name not in names:
            names[name] = value
