"""The tests. Those of one distribution lie beside it, and are part of this package like the rest."""

from pathlib import Path

_PACKAGES = Path(__file__).resolve().parents[1] / "packages"
__path__.extend(map(str, sorted(_PACKAGES.glob("*/tests"))))
