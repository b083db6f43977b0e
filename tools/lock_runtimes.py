"""Resolves the locks of all runtimes again (`./dev lock`), or of some: `tools/lock_runtimes.py
FAMILY[=VERSION] ...`.

It reads the package index and downloads no packages. A lock is valid for all Python versions of its release.
If one version of a package does not support all of them, or lacks wheels for some, the lock contains several
versions with markers.
"""

import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainshed.runtimes.families import FAMILIES, Minor, Release, Sheet, format_minor
from trainshed.runtimes.interpreters import Interpreters

_UV = str(Path(sys.executable).with_name("uv"))
_QUIETLY = ("--quiet", "--no-config", "--no-python-downloads")
_AS_REQUIREMENTS = ("--no-hashes", "--no-annotate", "--no-header", "--no-emit-project", "--frozen")
_PROJECT = """\
[project]
name = "runtime"
version = "0"
requires-python = ">={low},<{end}"
dependencies = {requirements}

[tool.uv]
# Only what has wheels, and has them for this platform: the Pythons that they are for decide as well then.
no-build = true
environments = {environments}
required-environments = {required}
exclude-dependencies = {excluded}
override-dependencies = {overrides}
"""
_X86 = "platform_machine == 'x86_64' and sys_platform == 'linux'"
_WHEELS_FOR = "x86_64-manylinux_2_28"
_SAYS_X86 = re.compile(
    rf" ; {_X86}$| and platform_machine == 'x86_64'| and sys_platform == 'linux'|"
    r"platform_machine == 'x86_64' and "
)
_OF_TODAY = ("pip", "setuptools", "wheel", "packaging", "certifi")


def resolve(sheet: Sheet, release: Release, interpreter: str) -> str:
    """Return the pinned requirements for every Python and platform of the release, one per line.

    The resolver searches for package versions that support all Pythons. If some packages have no wheel for
    the newest Python, the lock contains separate pins for that Python.
    """
    pins = _resolve(sheet, release, interpreter)
    newest = release.pythons[1]
    # Skip locks that are only for x86, because they contain packages that were never released as wheels.
    if not release.only_x86 and _lacks_wheels(sheet, release, pins, newest):
        since = f"python_full_version >= '{format_minor(newest)}'"
        before = f"python_full_version < '{format_minor(newest)}'"
        of_newest = _resolve(sheet, release, interpreter, since)
        pinned, wanted = (set(map(_pin, some)) for some in (pins, of_newest))
        pins = [
            *(pin if _pin(pin) in wanted else _only_where(before, pin) for pin in pins),
            *(_only_where(since, pin) for pin in of_newest if _pin(pin) not in pinned),
        ]
    return "".join(f"{pin}\n" for pin in sorted(pins))


def _pin(line: str) -> str:
    """Return a requirement without its marker."""
    return line.partition(" ; ")[0]


def _only_where(marker: str, pin: str) -> str:
    name, semicolon, own = pin.partition(" ; ")
    if own.startswith("python_full_version < "):
        return pin
    if " or " in own:
        own = f"({own})"
    return f"{name} ; {marker} and {own}" if semicolon else f"{name} ; {marker}"


def _resolve(sheet: Sheet, release: Release, interpreter: str, only: str | None = None) -> list[str]:
    """Resolve a release. `only`: a marker that selects Pythons; None = all Pythons of the release."""
    low, high = release.pythons
    sources = sheet.built_from(release)
    platforms = f"{only} and {_X86}" if only else _X86
    environments = platforms if release.only_x86 else only
    project = _PROJECT.format(
        low=format_minor(low),
        end=format_minor((high[0], high[1] + 1)),
        requirements=json.dumps(sheet.asks_for(release)),
        excluded=json.dumps([*release.excluded, *(text.partition("=")[0] for text in sources)]),
        environments=json.dumps([environments] if environments else []),
        required=json.dumps([] if release.only_x86 else [platforms]),
        overrides=json.dumps(release.overrides),
    )
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "pyproject.toml").write_text(project)
        _run("lock", *_as_of(release.day), "--python", interpreter, directory=directory)
        answer = _run("export", *_AS_REQUIREMENTS, "--python", interpreter, directory=directory)
    lines = answer.splitlines()
    if only:
        lines = [re.sub(rf" ; {only}$|{only} and ", "", line) for line in lines]
    if release.only_x86:
        lines = [_SAYS_X86.sub("", line) for line in lines]
    exact = {_name(text) for text in release.requirements if "===" in text}
    # Write three equals signs for packages whose builds with a local version label must be excluded, such as
    # CPU builds.
    return [pin.replace("==", "===", 1) if _name(pin) in exact else pin for pin in (*lines, *sources)]


def _lacks_wheels(sheet: Sheet, release: Release, pins: Sequence[str], python: Minor) -> bool:
    """Return whether a pinned package has no wheel for that Python on Linux x86-64, unless it is built from
    source on purpose."""
    by_intent = {_name(text) for text in sheet.built_from(release)}
    with tempfile.TemporaryDirectory() as directory:
        wanted = Path(directory, "wanted.txt")
        wanted.write_text("".join(f"{pin}\n" for pin in pins if _name(pin) not in by_intent))
        command = [_UV, "pip", "compile", *_QUIETLY, "--no-deps", "--only-binary", ":all:"]
        platform = ["--python-version", format_minor(python), "--python-platform", _WHEELS_FOR]
        answer = subprocess.run([*command, *platform, wanted], capture_output=True, check=False)
    return answer.returncode != 0


def main(names: Sequence[str]) -> None:
    interpreters = Interpreters()
    pythons = interpreters.found()
    for sheet, release in _selected_releases(names):
        fitting = [python for python in pythons if release.runs_on(python)]
        interpreter = interpreters.get(max(fitting)) if fitting else None
        if interpreter is None:
            raise SystemExit(f"{sheet.family} {release.version} needs {_needs(release.pythons)}")
        sheet.lock(release).write_text(resolve(sheet, release, interpreter.executable))
        sys.stdout.write(f"{sheet.lock(release)}\n")
        sys.stdout.flush()


def _selected_releases(chosen: Sequence[str]) -> Iterator[tuple[Sheet, Release]]:
    names = {f"{s.family}={r.version}": (s, r) for s in FAMILIES for r in s.releases}
    wanted = [name for name in names if not chosen or {name, name.partition("=")[0]} & set(chosen)]
    unknown = [text for text in chosen if not any(text in (n, n.partition("=")[0]) for n in names)]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)} does not exist. Use one of {', '.join(names)}")
    return (names[name] for name in wanted)


def _as_of(day: str | None) -> tuple[str, ...]:
    if not day:
        return ()
    exempt = (("--exclude-newer-package", f"{name}=false") for name in _OF_TODAY)
    return ("--exclude-newer", day, *itertools.chain.from_iterable(exempt))


def _run(*command: str, directory: str) -> str:
    answer = subprocess.run(
        [_UV, *command, *_QUIETLY, "--project", directory], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        project = Path(directory, "pyproject.toml").read_text()
        raise SystemExit(f"uv cannot resolve this project:\n{project}\n{answer.stderr}")
    return answer.stdout


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def _needs(pythons: tuple[Minor, Minor]) -> str:
    return f"a Python from {format_minor(pythons[0])} to {format_minor(pythons[1])}, and none was found"


if __name__ == "__main__":
    main(sys.argv[1:])
