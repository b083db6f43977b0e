"""Reads the packages that a program needs besides its own: lists of them, and files that list them. Pure, but
for reading the files."""

import re
from collections.abc import Iterator
from pathlib import Path

from trainshed.cli.run.source_files import PackagingError

_COMMENT = re.compile(r"(^|\s)#.*")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^]]*\]\s*)?([<>=!~;@(].*)?$", re.DOTALL)
_HASH = re.compile(r"\s--hash=\S+")


def split_requirements(texts: tuple[str, ...]) -> list[str]:
    """Split lists of requirements at commas, except for commas within a requirement: `a>=1,<2,b`. NAME.txt is
    replaced by the requirements in that file. Raises PackagingError if it cannot be read."""
    requirements: list[str] = []
    for text in texts:
        begun = False
        for part in filter(None, (part.strip() for part in text.split(","))):
            if part.endswith(".txt"):
                # Never taken for a package: indexes have malicious ones with such names, for users who forget
                # a `-r`.
                requirements.extend(read_requirements(Path(part)))
                begun = False
                continue
            if begun and (
                part[0] in "<>=!~" or requirements[-1].count("[") > requirements[-1].count("]")
            ):
                requirements[-1] += f",{part}"
            else:
                requirements.append(part)
            begun = True
    return requirements


def read_requirements(path: Path) -> list[str]:
    """Return the requirements of a file and of the files below its directory that it includes. Raises
    PackagingError with the lines that cannot be used."""
    requirements: list[str] = []
    wrong: list[str] = []
    _read(path, requirements, wrong, (), path.parent.resolve())
    if wrong:
        raise PackagingError("\n".join(wrong))
    return requirements


def requirement(text: str) -> str:
    """Convert a requirement to the form of package metadata. Raises ValueError that says what is wrong."""
    text = _HASH.sub("", text).strip()
    if text.startswith("-"):
        raise ValueError(
            "options are not read here; the index and the like are set for pip and uv by PIP_INDEX_URL, "
            "UV_INDEX_URL and PIP_FIND_LINKS in the environment"
        )
    if re.match(r"(git\+|https?:|hg\+|svn\+)", text):
        egg = _EGG.search(text)
        if egg is None:
            raise ValueError(f"it has no name; write NAME @ {text}")
        return f"{egg[1]} @ {text.partition('#')[0]}"
    if text.endswith((".whl", ".tar.gz", ".zip")) and "@" not in text:
        raise ValueError(
            "it is a file of this machine, and a job takes only NAME @ an address from which it can be "
            "fetched"
        )
    if not _NAMED.match(text):
        raise ValueError("it is no requirement such as pandas==2.2.0")
    return text


def _read(
    path: Path, requirements: list[str], wrong: list[str], above: tuple[Path, ...], root: Path
) -> None:
    if not path.resolve().is_relative_to(root):  # A stranger's list could name a user's keys.
        wrong.append(f"{path} leads out of {root}: name it by --requirements instead.")
        return
    try:
        lines = list(_lines(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as failure:
        wrong.append(f"{path} cannot be read: {failure}.")
        return
    for number, line in lines:
        text = _COMMENT.sub("", line).strip()
        option, _, value = text.replace("=", " ", 1).partition(" ")
        if option in ("-r", "--requirement") and value:
            included = path.parent / value.strip()
            if included.resolve() not in above:
                _read(included, requirements, wrong, (*above, path.resolve()), root)
        elif text:
            try:
                requirements.append(requirement(text))
            except ValueError as fault:
                wrong.append(f"{path}, line {number}, {text!r}: {fault}.")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number, text) of each line; lines that end with a backslash are joined with the next ones."""
    whole, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if whole else number
        if line.endswith("\\"):
            whole += line[:-1]
            continue
        yield first, whole + line
        whole = ""
    if whole:
        yield first, whole
