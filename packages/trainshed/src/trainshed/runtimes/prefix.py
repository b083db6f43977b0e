"""Creates private Python prefixes, which refer to the machine's interpreter and standard library, and have
their own `site-packages`.

Programs in virtual environments see either no base packages or the host's own ones. In a prefix, the base
packages *are* the interpreter's site-packages, and the host's are invisible. A prefix is a copy of the
interpreter's binary, links to every entry of the standard library, and a `site-packages`. The binary is a
copy (for a job's packages, a hard link to that copy) because Python up to 3.10 searches its library next to
the *resolved* executable.

This module creates and reads prefixes; it installs nothing into them.
"""

import os
import shutil
import subprocess
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from trainshed.runtimes.interpreters import Interpreter
from trainshed.runtimes.trees import is_file, read_small

_NOT_LINKED = ("site-packages", "dist-packages", "EXTERNALLY-MANAGED")
_PTH_OF_BASE = "_trainshed_base.pth"


class Prefix(Struct, frozen=True, dict=True):
    """The paths in a prefix at `root`, for Python `major.minor` = `python`."""

    root: Path
    python: str

    @cached_property
    def executable(self) -> Path:
        return self.root / "bin" / f"python{self.python}"

    @cached_property
    def library(self) -> Path:
        """Directory of the standard library, with links to it and `site-packages`."""
        return self.root / "lib" / f"python{self.python}"

    @cached_property
    def site(self) -> Path:
        return self.library / "site-packages"

    @cached_property
    def scripts(self) -> Path:
        """Directory of console scripts. It is separate from `bin`, which would hide the replica's own
        `python` on PATH."""
        return self.root / "scripts"

    @cached_property
    def excluded_metadata(self) -> Path:
        """Directory with metadata of packages that are excluded although an installed package requires them.
        Resolvers read it."""
        return self.root / "excluded"

    @cached_property
    def template(self) -> Path:
        """Directory with a small Python environment, which each replica copies and starts its Python from
        (`write_template`)."""
        return self.root / "template"


def make_prefix(root: Path, interpreter: Interpreter) -> Prefix:
    """Create a prefix with an empty `site-packages` at `root`, which must not exist."""
    prefix = _skeleton(root, interpreter)
    shutil.copy2(interpreter.executable, prefix.executable)
    _link_site(prefix)
    return prefix


def derive_prefix(root: Path, base: Prefix, interpreter: Interpreter) -> Prefix:
    """Create a prefix at `root` on top of the prefix `base`, with an empty `site-packages`.

    A program searches modules in this order: packages that it installs while it runs, packages of its user
    site, this prefix, `base`.
    """
    prefix = _skeleton(root, interpreter)
    prefix.executable.hardlink_to(base.executable)
    for renamed in base.root.glob("lib/python3*/dist-packages"):
        _link(prefix.root / renamed.relative_to(base.root), prefix.site)
    # A path file (`.pth`) of the new prefix adds `base.site` to the module search path. Python then ignores
    # the path files in `base.site`, so `addsitedir` reads them. `addsitedir` also passes them the directory
    # `base.site`, in which the path files of namespace packages search for the packages' parts.
    lines = [str(base.site), f"import site; site.addsitedir({str(base.site)!r})"]
    (prefix.site / _PTH_OF_BASE).write_text("".join(line + "\n" for line in lines))
    return prefix


def base_of(root: Path) -> Path | None:
    """Return the root of the base of the prefix at `root`, or None if it has no base."""
    for path in root.glob(f"lib/python3*/site-packages/{_PTH_OF_BASE}"):
        # The root is three levels above site-packages (site-packages, python3.X, lib).
        return Path(path.read_text().partition("\n")[0]).parents[2]
    return None


def move_scripts(prefix: Prefix) -> None:
    """Move console scripts out of `site-packages/bin`. Change them so that the first `python3` on PATH runs
    them. That is the replica's own interpreter, not the one that installed the scripts."""
    prefix.scripts.mkdir()
    installed = prefix.site / "bin"
    if installed.is_symlink() or not installed.is_dir():
        return
    for script in sorted(installed.iterdir()):
        if not is_file(script):
            # Skip links: the service would follow them to files that the package must not read.
            continue
        target = prefix.scripts / script.name
        content = read_small(script)
        if content is None:
            # A large file is a program and not a script. Move it unchanged.
            script.rename(target)
            continue
        first, newline, rest = content.partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            content = b"#!/usr/bin/env python3" + newline + rest
        elif first == b"#!/bin/sh" and rest.startswith(b"'''exec'"):
            # If the interpreter's path is long, the script starts with two lines that start the interpreter.
            # Replace both.
            content = b"#!/usr/bin/env python3\n" + rest.split(b"\n", 2)[-1]
        target.write_bytes(content)
        target.chmod(script.stat().st_mode)
    shutil.rmtree(installed)


def write_command(prefix: Prefix, name: str, program: str) -> None:
    """Replace all console scripts with one command. The prefix's own Python runs it, with any variables."""
    shutil.rmtree(prefix.scripts)
    prefix.scripts.mkdir()
    script = prefix.scripts / name
    # A line that is valid both in the shell and in Python. The shell starts the prefix's interpreter,
    # wherever that is. Python reads the line as a string.
    run = f"'''exec' \"${{0%/*}}/../bin/python{prefix.python}\" -I \"$0\" \"$@\"\n' '''\n"
    script.write_text(f"#!/bin/sh\n{run}{program}")
    script.chmod(0o755)


def _skeleton(root: Path, interpreter: Interpreter) -> Prefix:
    prefix = Prefix(root, ".".join(str(part) for part in interpreter.minor))
    prefix.executable.parent.mkdir(parents=True)
    for name in ("python", "python3"):
        (prefix.executable.parent / name).symlink_to(prefix.executable.name)
    prefix.site.mkdir(parents=True)
    for entry in os.scandir(interpreter.stdlib):
        if entry.name not in _NOT_LINKED:
            (prefix.library / entry.name).symlink_to(entry.path)
    # Link libpython into `lib`, because relocatable builds of Python search for it next to `bin`.
    # Distributions with lib64 search in lib64 instead, so also create a link with that name.
    beside = Path(interpreter.library_directory)
    if beside.is_relative_to(interpreter.prefix):
        for shared in beside.glob("libpython*"):
            (root / "lib" / shared.name).symlink_to(shared)
    if Path(interpreter.stdlib).parent.name == "lib64":
        (root / "lib64").symlink_to("lib")
    headers = Path(interpreter.include)
    (root / "include").mkdir()
    (root / "include" / headers.name).symlink_to(headers)
    return prefix


def _link_site(prefix: Prefix) -> None:
    """Create a link to `site-packages` with the other name that distributions such as Debian use for it."""
    command = [
        str(prefix.executable),
        "-I",
        "-S",
        "-c",
        "import site; print(*site.getsitepackages(), sep='\\n')",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL)
    places = [Path(line) for line in answer.stdout.splitlines()]
    if prefix.site in places:
        return
    inside = [place for place in places if place.is_relative_to(prefix.root)]
    _link(inside[-1], prefix.site)


def _link(place: Path, target: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(os.path.relpath(target, place.parent))


def write_template(prefix: Prefix, final: Prefix) -> None:
    """Write the template of a prefix that is being built at `prefix` and will be moved to `final`.

    The template has `pyvenv.cfg`, `bin/` with `python`, `python3` and `python3.X` (links to the prefix's
    binary), and an empty `lib/python3.X/site-packages/`. Each start of a program copies these entries
    (`trainshed.replica.supervisor.program.install_python`). `pip` is one of the prefix's console scripts.
    """
    template = prefix.template
    binaries = template / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(final.executable)
    for name in ("python3", f"python{prefix.python}"):
        (binaries / name).symlink_to("python")
    (template / "lib" / f"python{prefix.python}" / "site-packages").mkdir(parents=True)
    if (prefix.root / "lib64").is_symlink():
        (template / "lib64").symlink_to("lib")
    (template / "pyvenv.cfg").write_text(
        f"home = {final.executable.parent}\n"
        # The "system" of this option is the prefix. The option adds the base packages after a program's own
        # installs.
        "include-system-site-packages = true\n"
        f"version = {prefix.python}\n"
    )
