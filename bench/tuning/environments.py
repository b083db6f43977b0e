"""The environments of other projects' libraries. Each is below build/bench, and is installed if possible."""

import subprocess
import sys
from pathlib import Path

from tests.e2e.running import ROOT

from bench.tuning.engines import Engine

_OWN = ("msgspec>=0.19,<1",)
"""The dependencies of Trainshed's studies, in addition to NumPy."""

_OPTUNA = ("optuna>=5,<6", "torch==2.13.0", "numpy>=2,<3", "scipy>=1.13,<2", "scikit-learn>=1.5,<2")
_NEEDED = {Engine.OPTUNA_TPE.value: ("optuna", _OPTUNA), Engine.OPTUNA_GP.value: ("optuna", _OPTUNA)}
TIMEOUT = 1800


class NotInstalled(Exception):
    """The libraries of a candidate cannot be installed. The message contains the reason."""


def python_for(candidate: str) -> Path:
    """Return the interpreter of a candidate. For Trainshed's own candidates, it is this interpreter. The
    first call for another candidate installs its libraries, which takes minutes. Raises NotInstalled."""
    if candidate not in _NEEDED:
        return Path(sys.executable)
    name, packages = _NEEDED[candidate]
    home = ROOT / "build" / "bench" / f"tuning-{name}"
    python, stamp = home / "bin" / "python", home / "installed"
    wanted = (*packages, *_OWN)
    if not stamp.exists() or stamp.read_text() != "\n".join(wanted):
        _do(sys.executable, "-m", "venv", "--clear", str(home))
        pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        _do(str(python), *pip, *wanted)
        stamp.write_text("\n".join(wanted))
    return python


def _do(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.CalledProcessError as failure:
        last = (failure.stderr or "").strip().splitlines()[-1:]
        raise NotInstalled(f"{' '.join(command[1:5])} failed: {''.join(last)}") from failure
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise NotInstalled(f"{' '.join(command[1:5])} failed: {failure}") from failure
