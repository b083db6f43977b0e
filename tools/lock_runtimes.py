"""Resolves the releases that have a lock anew (`./dev lock`). Reads the package index; downloads no package."""

import subprocess
import sys
from pathlib import Path

from trainshed.runtimes.families import FAMILIES
from trainshed.runtimes.sheet import Release, Sheet, format_minor


def resolve(sheet: Sheet, release: Release) -> str:
    """The pinned requirements for every Python and platform of the release."""
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "compile", "--quiet", "--universal", "--no-header", "--no-annotate"]
    command += ["--no-config", "--python-version", format_minor(release.pythons[0]), "-"]
    asked = "\n".join((*sheet.requirements, *release.requirements))
    answer = subprocess.run(command, input=asked, capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"{sheet.family} {release.version} does not resolve:\n{answer.stderr}")
    exact = [text for text in release.requirements if "===" in text]
    lines = [
        # Only three signs keep builds with a label of their own out, such as the ones for CPUs.
        line.replace("==", "===", 1)
        if any(text.replace("===", "==") in line for text in exact)
        else line
        for line in answer.stdout.splitlines()
    ]
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    for sheet in FAMILIES:
        for release in sheet.releases:
            if release.lock is not None:
                release.lock.write_text(resolve(sheet, release))
                sys.stdout.write(f"{release.lock}\n")


if __name__ == "__main__":
    main()
