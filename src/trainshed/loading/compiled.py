"""Keeps the compiled modules that a service loads at its start in one file, so that it starts sooner
(docs/adr/0111).

To look for each of nine hundred modules where Python looks, and to open its file, takes a quarter of a
service's start. The file lies among Python's own compiled files of this package, and follows the same rules:
a module is taken from it if its source has not changed, and the interpreter and its paths are the same.
Python finds all other modules as usual. The file stays open until `release`, since opening it for each module
would be a tenth of the loading; a process that is forked meanwhile calls `release` first.
"""

import contextlib
import marshal
import os
import subprocess
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import ExtensionFileLoader, SourceFileLoader
from collections.abc import Callable, Iterator, Sequence
from types import CodeType

_SUFFIX = f".{sys.implementation.cache_tag}.modules"
_NUMBER = 8
"""Bytes of a number in the file."""

_Identity = tuple[int, int, int]
"""A file's inode, time of change (ns) and size."""
_Entry = tuple[str, bool, _Identity, int, int]
"""The path of the source or extension, whether the module is a package, the identity of that path's file, and
the offset and the size in bytes of its code; size 0 = an extension."""


def place() -> str:
    """The path of the file, whether it exists or not."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.join(package, "__pycache__", f"service{_SUFFIX}")


def _key() -> str:
    """Everything that decides where this interpreter finds modules and how it compiles them."""
    # The first path is the script's directory, or the working directory.
    paths = sys.path if sys.flags.safe_path else sys.path[1:]
    return ascii((sys.version, sys.flags.optimize, paths))


class _Loader(SourceFileLoader):
    """Loads one module, whose code is in the file."""

    def __init__(
        self, name: str, path: str, entry: _Entry, read: Callable[[_Entry], bytes]
    ) -> None:
        super().__init__(name, path)
        self._entry = entry
        self._read: Callable[[_Entry], bytes] | None = read

    def get_code(self, fullname: str) -> CodeType | None:
        # The code is asked for once; a module should not hold the file's finder for ever.
        read, self._read = self._read, None
        code = read(self._entry) if read is not None else b""
        return marshal.loads(code) if code else super().get_code(fullname)


class CompiledModules:
    """A finder for `sys.meta_path` that finds the modules in one file. It finds nothing if the file does not
    exist, or was written for another interpreter."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity: _Identity = (0, 0, 0)
        self._entries: dict[str, _Entry] = {}
        #: The file's descriptor; -1 = it is not open.
        self._handle = -1
        #: Modules that were loaded before any could be found here.
        self._known = frozenset(sys.modules)
        with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
            self._read()

    def _read(self) -> None:
        with open(self._path, "rb") as file:
            self._identity = _identity(os.fstat(file.fileno()))
            file.seek(-_NUMBER, os.SEEK_END)
            file.seek(int.from_bytes(file.read(_NUMBER), "little"))
            key, entries = marshal.loads(file.read()[:-_NUMBER])
        if key == _key():
            self._entries = entries

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Find a module, as `importlib.abc.MetaPathFinder` does. Returns None to let Python look for it as
        usual."""
        entry = self._entries.get(name)
        if entry is None or not _is_fresh(entry):
            return None
        origin, is_package, _, _, size = entry
        loader: SourceFileLoader | ExtensionFileLoader = ExtensionFileLoader(name, origin)
        if size:
            loader = _Loader(name, origin, entry, self.code)
        spec = ModuleSpec(name, loader, origin=origin, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [os.path.dirname(origin)]
        return spec

    def code(self, entry: _Entry) -> bytes:
        """Returns the marshalled code of a module; b"" if the file no longer holds it."""
        begin, size = entry[3:]
        try:
            if self._handle < 0:
                self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            # Another service may have replaced the file.
            if _identity(os.fstat(self._handle)) == self._identity:
                found = os.pread(self._handle, size, begin)
                return found if len(found) == size else b""
        except OSError:
            return b""
        return b""

    def close(self) -> None:
        """Close the file; it is opened again when a module of it is loaded."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def save(self) -> bool:
        """Write the file anew if this process has loaded modules that are not in it, from Python's own
        compiled files. Returns False if nothing was missing, or Python may not write such files. It takes a
        second, in a process of its own, so that this one does not keep the memory. Raises OSError if the file
        cannot be written."""
        if sys.dont_write_bytecode or sys.pycache_prefix:
            return False
        fresh = {name: entry for name, entry in self._entries.items() if _is_fresh(entry)}
        missing = [
            (name, str(spec.origin), cached, spec.submodule_search_locations is not None)
            for name, spec, cached in _loaded()
            if name not in fresh and name not in self._known
        ]
        self.close()
        if not missing:
            return False
        # Run by its path: this process may find modules where a new one does not.
        order = marshal.dumps((self._path, self._identity, _key(), missing, fresh))
        command = [sys.executable, "-I", os.path.join(os.path.dirname(__file__), "writing.py")]
        done = subprocess.run(command, input=order, capture_output=True, check=False)
        if done.returncode:
            raise OSError(f"{self._path}: {done.stderr.decode(errors='replace').strip()}")
        return True


def _identity(found: os.stat_result) -> _Identity:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _is_fresh(entry: _Entry) -> bool:
    try:
        return _identity(os.stat(entry[0])) == entry[2]
    except OSError:
        return False


def install() -> None:
    """Have modules found in the file from now on."""
    sys.meta_path.insert(0, CompiledModules(place()))


def release() -> CompiledModules | None:
    """Stop looking in the file: Python finds the modules that are loaded from here on. Returns the finder
    that was in use; None if there was none."""
    for finder in sys.meta_path:
        if isinstance(finder, CompiledModules):
            sys.meta_path.remove(finder)
            finder.close()
            return finder
    return None


def _loaded() -> Iterator[tuple[str, ModuleSpec, str]]:
    """Yields the name, the spec and Python's own compiled file ("" for an extension) of each module that this
    process has loaded from a file."""
    for name, module in tuple(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if (
            isinstance(spec, ModuleSpec)
            and spec.name == name
            and isinstance(spec.loader, SourceFileLoader | ExtensionFileLoader)
            and spec.origin
        ):
            yield name, spec, str(spec.cached) if isinstance(spec.loader, SourceFileLoader) else ""
