"""Finds an agent's modules in one file (`module_bundle`), of which this code is the beginning: it runs in an
interpreter that has loaded nothing yet, with its name `code` set to that file, read up to here.
"""

import marshal
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader, SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType
    from typing import IO

    Codes = memoryview | bytes

LATER = "trainshed.engines.remote.agent_process"
"""With this module begins what an agent loads once its programs have been started: the file's second part."""


class BundledLoader(SourceFileLoader):
    """The loader of one bundled module, whose source is at `path`."""

    def __init__(self, name: str, path: str, code: "Codes") -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> "CodeType | None":
        # Used once and not kept: all code together takes 5 MB.
        code, self._code = self._code, b""
        return marshal.loads(code) if code else super().get_code(fullname)


class BundleFinder:
    """Finds bundled modules. `file`: positioned behind the finder's own code. Its first part is read here,
    the second one when it is needed."""

    def __init__(self, file: "IO[bytes]") -> None:
        #: (path of the source, whether it is a package, its code) by name; no code = an extension module.
        self._modules: dict[str, tuple[str, bool, Codes]] = {}
        self._read_part(file)
        self._path, self._rest = file.name, file.tell()

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: object = None
    ) -> "ModuleSpec | None":
        """Find a module as `importlib.abc.MetaPathFinder` says; other finders look for one that is not in the
        bundle."""
        if name == LATER:
            self._read_rest()
        found = self._modules.pop(name, None)
        if found is None:
            return None
        origin, is_package, code = found
        loader = BundledLoader(name, origin, code) if code else ExtensionFileLoader(name, origin)
        spec = ModuleSpec(name, loader, origin=origin, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [origin.rpartition("/")[0]]
        return spec

    def _read_rest(self) -> None:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._rest)
                self._read_part(file)
        except (OSError, ValueError, EOFError, TypeError):
            pass

    def _read_part(self, file: "IO[bytes]") -> None:
        """Read one part of the bundle. Raises ValueError, EOFError, TypeError if it is incomplete."""
        index, size = map(int, file.readline().split())
        found = marshal.loads(file.read(index))
        # Read at once and not copied again, because touching each page of memory takes time.
        codes = memoryview(file.read(size))
        if len(codes) < size:
            raise EOFError(file.name)
        begin = 0
        for name, origin, is_package, length in found:
            self._modules[name] = origin, is_package, codes[begin : begin + length]
            begin += length


if "code" in globals():
    sys.meta_path.insert(0, BundleFinder(globals()["code"]))
