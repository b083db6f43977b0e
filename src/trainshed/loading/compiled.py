"""The modules that a service has loaded at its start, compiled, in one file (docs/adr/0111).

To look for each of nine hundred modules where Python looks, and to open its file, takes a quarter of a
service's start. The file lies among Python's own compiled files of this package, and counts for as much as
these: a module is taken from it if its source is what it was, and the interpreter and its paths are the same.
All else is found as ever. The file stays open until `release`, since to open it for each module would be a
tenth of the loading; a process that is forked meanwhile calls that first.
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
"""The source or extension, whether it is a package, what tells that file from others, where its code begins,
and how long it is; 0 = an extension."""


def place() -> str:
    """Where the file is, or would be."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    return os.path.join(package, "__pycache__", f"service{_SUFFIX}")


def _key() -> str:
    """What tells this interpreter from others for whom modules may be elsewhere, or be compiled otherwise."""
    # The first path is that of the script, or the working directory.
    paths = sys.path if sys.flags.safe_path else sys.path[1:]
    return ascii((sys.version, sys.flags.optimize, paths))


class _Loader(SourceFileLoader):
    """Of one module, whose code is in the file at hand."""

    def __init__(
        self, name: str, path: str, entry: _Entry, read: Callable[[_Entry], bytes]
    ) -> None:
        super().__init__(name, path)
        self._entry = entry
        self._read: Callable[[_Entry], bytes] | None = read

    def get_code(self, fullname: str) -> CodeType | None:
        # It is asked for once; what it was read from is not kept by each module.
        read, self._read = self._read, None
        code = read(self._entry) if read is not None else b""
        return marshal.loads(code) if code else super().get_code(fullname)


class CompiledModules:
    """A finder of `sys.meta_path`, for what is in one file. It finds nothing if the file is not there, or is
    of no use to this process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity: _Identity = (0, 0, 0)
        self._entries: dict[str, _Entry] = {}
        #: The file; -1 = it is not open.
        self._handle = -1
        #: What was loaded before modules could be found here.
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
        """As finders do. None: it is looked for as ever."""
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
        """What is marshalled of a module; b"" = it is not to be had any more."""
        begin, size = entry[3:]
        try:
            if self._handle < 0:
                self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            # Another service may have put another one in its place.
            if _identity(os.fstat(self._handle)) == self._identity:
                found = os.pread(self._handle, size, begin)
                return found if len(found) == size else b""
        except OSError:
            return b""
        return b""

    def close(self) -> None:
        """Close the file; it is opened again when something of it is asked for."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def save(self) -> bool:
        """Have the file written anew if this process has loaded modules that were not found there, from
        Python's own compiled files. False: nothing was missing, or Python is not to write such files. Takes
        a second, in a process of its own, whose memory goes with it. Raises OSError: the file cannot be
        written."""
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
        # Loaded by its name: this process may find modules where a new one does not.
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
    """Have modules found there from now on."""
    sys.meta_path.insert(0, CompiledModules(place()))


def release() -> CompiledModules | None:
    """Look there no more: what is loaded from here on is found as ever. Returns what was looked into; None if
    that was nothing."""
    for finder in sys.meta_path:
        if isinstance(finder, CompiledModules):
            sys.meta_path.remove(finder)
            finder.close()
            return finder
    return None


def _loaded() -> Iterator[tuple[str, ModuleSpec, str]]:
    """What this process has loaded from files; with Python's own compiled file, "" for an extension."""
    for name, module in tuple(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        if (
            isinstance(spec, ModuleSpec)
            and spec.name == name
            and isinstance(spec.loader, SourceFileLoader | ExtensionFileLoader)
            and spec.origin
        ):
            yield name, spec, str(spec.cached) if isinstance(spec.loader, SourceFileLoader) else ""
