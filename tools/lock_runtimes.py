"""Makes the locks of the runtimes anew (`./dev lock`), or of one: `tools/lock_runtimes.py FAMILY[=VERSION]
...`.

Reads the package index; downloads no package. A lock holds for all Pythons of its release. Where one version
of a package does not serve them all, or has no wheel for some, the lock has several, with markers.
"""

import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainshed.runtimes.families import FAMILIES
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.sheet import Minor, Release, Sheet, format_minor

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
{environments} = ["{x86}"]
exclude-dependencies = {excluded}
override-dependencies = {overrides}
"""
_X86 = "platform_machine == 'x86_64' and sys_platform == 'linux'"
_SAYS_X86 = re.compile(
    rf" ; {_X86}$| and platform_machine == 'x86_64'| and sys_platform == 'linux'|"
    r"platform_machine == 'x86_64' and "
)
_OF_TODAY = ("pip", "setuptools", "wheel", "packaging", "certifi")


def resolve(sheet: Sheet, release: Release, interpreter: str) -> str:
    """The pinned requirements for every Python and platform of the release, a line each."""
    low, high = release.pythons
    sources = sheet.built_from(release)
    project = _PROJECT.format(
        low=format_minor(low),
        end=format_minor((high[0], high[1] + 1)),
        requirements=json.dumps(sheet.asks_for(release)),
        excluded=json.dumps([*release.excluded, *(text.partition("=")[0] for text in sources)]),
        environments="environments" if release.only_x86 else "required-environments",
        x86=_X86,
        overrides=json.dumps(release.overrides),
    )
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "pyproject.toml").write_text(project)
        _run("lock", *_as_of(release.day), "--python", interpreter, directory=directory)
        answer = _run("export", *_AS_REQUIREMENTS, "--python", interpreter, directory=directory)
    if release.only_x86:
        answer = "".join(f"{_SAYS_X86.sub('', line)}\n" for line in answer.splitlines())
    exact = {_name(text) for text in release.requirements if "===" in text}
    pins = [
        # Only three signs keep builds with a label of their own out, such as the ones for CPUs.
        pin.replace("==", "===", 1) if _name(pin) in exact else pin
        for pin in (*answer.splitlines(), *sources)
    ]
    return "".join(f"{pin}\n" for pin in sorted(pins))


def main(asked: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = Interpreters(Path(directory, "interpreters.json"))
        pythons = found.found()
    for sheet, release in _chosen(asked):
        fitting = [each for each in pythons if release.runs_on(each)]
        interpreter = found.get(max(fitting)) if fitting else None
        if interpreter is None:
            raise SystemExit(f"{sheet.family} {release.version} needs {_needs(release.pythons)}")
        sheet.lock(release).write_text(resolve(sheet, release, interpreter.executable))
        sys.stdout.write(f"{sheet.lock(release)}\n")
        sys.stdout.flush()


def _chosen(asked: Sequence[str]) -> Iterator[tuple[Sheet, Release]]:
    named = {f"{s.family}={r.version}": (s, r) for s in FAMILIES for r in s.releases}
    wanted = [name for name in named if not asked or {name, name.partition("=")[0]} & set(asked)]
    unknown = [text for text in asked if not any(text in (n, n.partition("=")[0]) for n in named)]
    if unknown:
        raise SystemExit(f"There is no {', '.join(unknown)}; there are: {', '.join(named)}")
    return (named[name] for name in wanted)


def _as_of(day: str) -> tuple[str, ...]:
    if not day:
        return ()
    exempt = (("--exclude-newer-package", f"{name}=false") for name in _OF_TODAY)
    return ("--exclude-newer", day, *itertools.chain.from_iterable(exempt))


def _run(*command: str, directory: str) -> str:
    answer = subprocess.run(
        [_UV, *command, *_QUIETLY, "--project", directory],
        capture_output=True,
        text=True,
        check=False,
    )
    if answer.returncode:
        project = Path(directory, "pyproject.toml").read_text()
        raise SystemExit(f"This does not resolve:\n{project}\n{answer.stderr}")
    return answer.stdout


def _name(requirement: str) -> str:
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""


def _needs(pythons: tuple[Minor, Minor]) -> str:
    return f"a Python from {format_minor(pythons[0])} to {format_minor(pythons[1])}, and none was found"


if __name__ == "__main__":
    main(sys.argv[1:])
