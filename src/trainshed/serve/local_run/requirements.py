"""Requirements as people write them down: lines and files become what a package's metadata may say. Reads files, installs nothing."""

import re
from collections.abc import Iterator
from pathlib import Path

from trainshed.serve.local_run.wish import NotRun

_COMMENT = re.compile(r"(^|\s)#.*")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\s*(\[[^]]*\]\s*)?([<>=!~;@(].*)?$", re.DOTALL)
_HASH = re.compile(r"\s--hash=\S+")


def read_file(path: Path) -> list[str]:
    """Every requirement of a file and of those that it includes. Raises NotRun, naming the lines that cannot be kept."""
    found: list[str] = []
    wrong: list[str] = []
    _read(path, found, wrong, ())
    if wrong:
        raise NotRun("\n".join(wrong))
    return found


def one(text: str) -> str:
    """A requirement as metadata has it. Raises ValueError saying what is wrong."""
    text = _HASH.sub("", text).strip()
    if text.startswith("-"):
        raise ValueError(
            "options are not read here; the index and the like are set for pip and uv by PIP_INDEX_URL, UV_INDEX_URL and "
            "PIP_FIND_LINKS in the environment"
        )
    if re.match(r"(git\+|https?:|hg\+|svn\+)", text):
        egg = _EGG.search(text)
        if egg is None:
            raise ValueError(f"it has no name; write NAME @ {text}")
        return f"{egg[1]} @ {text.partition('#')[0]}"
    if text.endswith((".whl", ".tar.gz", ".zip")) and "@" not in text:
        raise ValueError("a file of this machine is given by --extra-packages")
    if not _NAMED.match(text):
        raise ValueError("it is no requirement such as pandas==2.2.0")
    return text


def _read(path: Path, found: list[str], wrong: list[str], above: tuple[Path, ...]) -> None:
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
                _read(included, found, wrong, (*above, path.resolve()))
        elif text:
            try:
                found.append(one(text))
            except ValueError as fault:
                wrong.append(f"{path}, line {number}, {text!r}: {fault}.")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of its first line, text) of lines, with those that go on put together."""
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
