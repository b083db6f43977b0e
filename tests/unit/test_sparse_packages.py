"""Modules of a package without what its `__init__` loads."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """\
import sys
from trainshed.loading.packages import sparsely
sparsely("bundled", {"VALUE": "bundled.inner"})
import bundled.inner
from bundled import VALUE
print("bundled.heavy" in sys.modules, VALUE, hasattr(bundled, "__all__"))
from bundled import WEIGHT
print("bundled.heavy" in sys.modules, WEIGHT, bundled.inner.VALUE, bundled.__all__)
sparsely("bundled", {})
print(sys.modules["bundled"] is bundled)
try:
    sparsely("absent_package", {})
except ModuleNotFoundError as failure:
    print(failure)
"""


def test_a_package_is_run_when_it_is_asked_for_something(tmp_path: Path) -> None:
    package = tmp_path / "bundled"
    package.mkdir()
    (package / "__init__.py").write_text('from bundled.heavy import WEIGHT\n__all__ = ["WEIGHT"]\n')
    (package / "heavy.py").write_text("WEIGHT = 7\n")
    (package / "inner.py").write_text("VALUE = 1\n")
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PROGRAM}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "False 1 False",
        "True 7 1 ['WEIGHT']",
        "True",
        "No module named 'absent_package'",
    ]
