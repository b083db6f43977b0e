"""ADR 111: modules are found in one file, and as ever where that is of no use."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainshed.loading.writing import without_docstrings

PROGRAM = """\
import sys
from trainshed.loading.compiled import CompiledModules
finder = CompiledModules(sys.argv[1])
sys.meta_path.insert(0, finder)
import bundled.inner
import zlib
from importlib.resources import files
found = type(bundled.inner.__loader__).__name__ == "_Loader"
print(bundled.inner.VALUE, bundled.inner.__file__, files("bundled").joinpath("data").read_text(), found)
print(finder.save())
"""


class Place:
    """A package, and the file that its modules are kept in."""

    def __init__(self, directory: Path) -> None:
        self.file = directory / "kept.modules"
        self.paths = directory / "paths"
        package = self.paths / "bundled"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "data").write_text("beside")
        self.inner = package / "inner.py"
        self.inner.write_text("VALUE = 1\n")

    def run(self, *more: Path) -> tuple[str, bool, bool]:
        """The value of the module; whether it was found in the file; whether the file was written anew."""
        variables = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        variables["PYTHONPATH"] = os.pathsep.join(map(str, (self.paths, *more)))
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(self.file)],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        )
        first, saved = done.stdout.splitlines()
        value, file, beside, found = first.split()
        assert (file, beside) == (str(self.inner), "beside")
        return value, found == "True", saved == "True"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_was_loaded_once_is_found_the_next_time(place: Place) -> None:
    assert place.run() == ("1", False, True)
    assert place.run() == ("1", True, False)


def test_a_changed_module_is_never_taken_as_it_was(place: Place) -> None:
    place.run()
    before = place.inner.stat()
    draft = place.inner.with_suffix(".new")
    draft.write_text("VALUE = 2\n")
    # Even if neither its time nor its size tells.
    os.utime(draft, ns=(before.st_atime_ns, before.st_mtime_ns))
    for compiled in (place.inner.parent / "__pycache__").glob("inner.*"):
        compiled.unlink()
    draft.replace(place.inner)
    assert place.run() == ("2", False, True)
    assert place.run() == ("2", True, False)


@pytest.mark.parametrize("kept", [b"", b"\xff" * 7, b"\xff" * 100])
def test_a_file_of_no_use_is_passed_over_and_replaced(place: Place, kept: bytes) -> None:
    place.file.write_bytes(kept)
    assert place.run() == ("1", False, True)
    assert place.run() == ("1", True, False)


def test_where_modules_may_be_elsewhere_it_is_of_no_use(place: Place, tmp_path: Path) -> None:
    place.run()
    assert place.run(tmp_path / "more") == ("1", False, True)


SOURCE = '''"""Of the module."""

class Outer:
    """Of the class."""

    def told(self, many=1, *, few="few"):
        """Of the method."""
        return [f"{each}" for each in (many, few)]


def same():
    """Said."""
    return "Said."


def untold():
    return "first constant"

named = lambda: "as it is"
'''


def test_docstrings_are_left_out_and_nothing_else() -> None:
    found: dict[str, Any] = {}
    exec(without_docstrings(compile(SOURCE, "source", "exec")), found)
    outer = found["Outer"]
    assert (found["__doc__"], outer.__doc__, outer.told.__doc__) == (None, None, None)
    assert outer().told() == ["1", "few"]
    assert (found["same"](), found["untold"](), found["named"]()) == (
        "Said.",
        "first constant",
        "as it is",
    )


def test_what_is_kept_for_the_next_start_has_no_docstrings(place: Place) -> None:
    place.inner.write_text('def asked():\n    """Told."""\n\nVALUE = asked.__doc__\n')
    assert place.run() == ("Told.", False, True)
    assert place.run() == ("None", True, False)
