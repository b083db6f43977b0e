"""Tests of the local engine's service, run once more over one whose replicas are on a cluster's nodes."""

import functools
from collections.abc import Callable, Collection
from types import ModuleType
from typing import Any

import pytest


def adopt(
    names: dict[str, Any],
    module: ModuleType,
    *,
    at_length: Collection[str] | None = None,
    left_out: Collection[str] = (),
) -> None:
    """Make a module's tests and fixtures those of the module with these global names, which has its own
    `service`. `at_length`: are soaks here; None = all of them are."""
    for name, value in vars(module).items():
        if name.startswith("__") or name in left_out or name in names:
            continue
        is_soak = name.startswith("test_") and (at_length is None or name in at_length)
        names[name] = _soak(value) if is_soak else value


def _soak(test: Callable[..., None]) -> Callable[..., None]:
    """Not the same function: where it comes from it is none."""

    @functools.wraps(test)
    def at_length(*arguments: Any, **named: Any) -> None:
        test(*arguments, **named)

    return pytest.mark.soak(at_length)
