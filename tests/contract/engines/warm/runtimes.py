"""Runtimes whose programs can begin warm: a base with what a preloader imports, and layers with programs."""

import io
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.contract.engines.warm.programs import FRAMEWORK, PROGRAMS
from tests.soaks import SOAKS
from trainshed.cli.run.program import pack
from trainshed.core.launch import Software, WarmStart
from trainshed.runtimes.families import Minor
from trainshed.runtimes.interpreters import Interpreter, Interpreters
from trainshed.runtimes.prefix import Prefix, derive_prefix, make_prefix, write_template

OWN = sys.version_info.major, sys.version_info.minor
#: Versions of Python that runtimes have; tests skip those that the machine lacks.
MINORS = [(3, minor) for minor in range(7, 15)] if SOAKS else [OWN]

#: Modules of the base, beside `framework`: each does while it is imported what its name says.
IMPORTED = {
    "framework": FRAMEWORK,
    "threaded": "import threading\n"
    "threading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "open_file": "FILE = open('/etc/hostname')\n",
    "dies": "import os\nos._exit(3)\n",
}


class Runtime:
    """A base and a layer over it."""

    def __init__(self, base: Prefix, layer: Prefix, interpreter: Interpreter) -> None:
        self.base = base
        self.layer = layer
        self._interpreter = interpreter

    def software(self, prefix: Prefix) -> Software:
        shown = (str(prefix.root), str(self.base.root), *self._interpreter.places)
        return Software(template=str(prefix.template), read_only=shown)

    def warm(self, *modules: str) -> WarmStart:
        """The wish to begin in a fork of a process that has imported these modules; `framework` if none is
        named."""
        return WarmStart(str(self.base.template), modules or ("framework",))


class ToyRuntime(Runtime):
    """A framework of a few lines in its base, and all programs in its layer."""

    def __init__(self, place: Path, minor: Minor) -> None:
        interpreter = Interpreters().get(minor)
        if interpreter is None:
            pytest.skip(f"there is no Python {minor[0]}.{minor[1]}")
        self.minor = minor
        self._place = place
        base = make_prefix(place / "base", interpreter)
        _write_modules(base, IMPORTED)
        write_template(base, base)
        layer = derive_prefix(place / "layer", base, interpreter)
        super().__init__(base, layer, interpreter)
        _write_modules(layer, PROGRAMS)
        write_template(layer, layer)

    def overriding(self) -> Prefix:
        """A layer with another version of the framework, and a program that prints which one it gets."""
        layer = derive_prefix(self._place / "overriding", self.base, self._interpreter)
        which = "import framework; print(framework.__version__)\n"
        _write_modules(layer, {"framework": "__version__ = '2.0'\n", "which": which})
        write_template(layer, layer)
        return layer

    def packed(self, files: Mapping[str, str], entry: str) -> tuple[Prefix, str]:
        """A layer with what `trainshed run` makes of these files, and the module that starts it."""
        source = self._place / f"source-{entry}"
        source.mkdir()
        for name, text in files.items():
            (source / name).write_text(text)
        program = pack(source / entry, "", [])
        layer = derive_prefix(self._place / f"layer-{entry}", self.base, self._interpreter)
        with zipfile.ZipFile(io.BytesIO(program.packages[0].content)) as wheel:
            wheel.extractall(layer.site)
        write_template(layer, layer)
        return layer, program.module


def _write_modules(prefix: Prefix, texts: Mapping[str, str]) -> None:
    """`texts`: by the module's name, with slashes."""
    for name, text in texts.items():
        path = prefix.site / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
