"""The tests. Tests of a single distribution are in that distribution's directory, and are imported as part of
this package.
"""

from pathlib import Path

_PACKAGES = Path(__file__).resolve().parents[1] / "packages"
__path__.extend(map(str, sorted(_PACKAGES.glob("*/tests"))))
