"""Runtimes whose programs can start warm: a base with the modules that a preloader imports, and
layers with programs."""

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
#: Python versions of the runtimes. Tests skip versions that the machine lacks.
MINORS = [(3, minor) for minor in range(7, 15)] if SOAKS else [OWN]

#: Modules of the base in addition to `framework`. Each does during its import what its name describes.
IMPORTED = {
    "framework": FRAMEWORK,
    "threaded": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "open_file": "FILE = open('/etc/hostname')\n",
    "dies": "import os\nos._exit(3)\n",
}


class Runtime:
    """A base and a layer on top of it."""

    def __init__(self, base: Prefix, layer: Prefix, interpreter: Interpreter) -> None:
        self.base = base
        self.layer = layer
        self._interpreter = interpreter

    def software(self, prefix: Prefix) -> Software:
        shown = (str(prefix.root), str(self.base.root), *self._interpreter.places)
        return Software(template=str(prefix.template), read_only=shown)

    def warm(self, *modules: str) -> WarmStart:
        """Return the setting for a start in a fork of a process that has imported these modules.
        Default: `framework`."""
        return WarmStart(str(self.base.template), modules or ("framework",))


class ToyRuntime(Runtime):
    """A small framework in the base, and all programs in the layer."""

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
        """Return a layer with another version of the framework, and a program that prints the
        imported version."""
        layer = derive_prefix(self._place / "overriding", self.base, self._interpreter)
        printed_version = "import framework; print(framework.__version__)\n"
        _write_modules(layer, {"framework": "__version__ = '2.0'\n", "which": printed_version})
        write_template(layer, layer)
        return layer

    def pack_layer(self, files: Mapping[str, str], entry: str) -> tuple[Prefix, str]:
        """Return a layer with these files as packed by `trainshed run`, and the module that starts
        the program."""
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
    """Write modules; the keys of `texts` are module names with slashes."""
    for name, text in texts.items():
        path = prefix.site / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
