"""Runs the suite on any engine: `python -m trainshed.engines.conformance PACKAGE:FACTORY [PYTEST-OPTION
...]`."""

import sys
from collections.abc import Callable
from pathlib import Path
from pkgutil import resolve_name

import pytest

from trainshed.engines.conformance import test_engine
from trainshed.engines.conformance.lab import Lab


class Binding:
    """A pytest plug-in that gives the suite its lab."""

    def __init__(self, factory: Callable[[Path], Lab]) -> None:
        self._factory = factory

    @pytest.fixture
    def lab(self, tmp_path: Path) -> Lab:
        return self._factory(tmp_path)


def main(arguments: list[str]) -> int:
    if not arguments or ":" not in arguments[0]:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    sys.path.insert(0, "")
    binding = Binding(resolve_name(arguments[0]))
    assert test_engine.__file__ is not None
    return int(pytest.main([test_engine.__file__, *arguments[1:]], plugins=[binding]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
