"""Makes the example change of each checklist of docs/checklists in a copy of the tree.

The change touches only files that its checklist names, and passes the tests that notice incomplete changes.
Without a file that the checklist marks as "(checked)", one of these tests fails.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = "packages/trainshed/src/trainshed/"


def sections(text: str) -> dict[str, str]:
    """Return the sections of a text by their headings."""
    return dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", text, re.MULTILINE))


CHECKLISTS = sections((ROOT / "docs/checklists/README.md").read_text())
EXAMPLES = sections((ROOT / "tests/unit/checklist_examples.diff").read_text())
RUNNER = """
import importlib, json, os, sys
import pytest
for module in ("click", "hypothesis", "msgspec", "numpy.linalg", "uvloop", "xdist"):
    importlib.import_module(module)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        with open("gates.log", "wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        options = ["-x", "-p", "anyio", "-p", "no:cacheprovider"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
        os._exit(pytest.main([*options, *json.loads(line)]))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Runs pytest in a fork for each line of arguments, because most of its time is spent on imports."""


class Tree:
    """A copy of the tracked files, and a process that runs tests in it."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._changed = set[Path]()
        listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
        for name in (name for name in listed.split("\0") if (ROOT / name).is_file()):
            if not (target := root / name).parent.is_dir():
                target.parent.mkdir(parents=True)
                # Compiled modules are valid for copies with the same times.
                (target.parent / "__pycache__").symlink_to((ROOT / name).parent / "__pycache__")
            shutil.copy2(ROOT / name, target)
        sources = map(str, sorted(root.glob("packages/*/src")))
        self._environ = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(root), *sources]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        self._runner = self._start(["-c", RUNNER], stdin=subprocess.PIPE, text=True)

    def _start(self, words: list[str], **options: Any) -> "subprocess.Popen[Any]":
        command, pipe = [sys.executable, *words], subprocess.PIPE
        environ = self._environ | {"UPDATE_GOLDEN": "1"} if "text" not in options else self._environ
        return subprocess.Popen(command, cwd=self._root, env=environ, stdout=pipe, **options)

    def close(self) -> None:
        self._runner.communicate()

    def errors(self, gates: str) -> str:
        """Run the tests `gates`, and return their output if one fails."""
        assert self._runner.stdin is not None and self._runner.stdout is not None
        print(json.dumps(gates.split()), file=self._runner.stdin, flush=True)
        code = int(self._runner.stdout.readline())
        return (self._root / "gates.log").read_text() if code else ""

    def change(self, path: str, kind: str, text: str) -> None:
        """Apply a change of EXAMPLES to a file or folder. NEXT stands for the next number in its folder."""
        folder, _, name = path.rpartition("/")
        number = len([*(self._root / folder).glob("[0-9]*")]) + 1
        file = self._root / folder / name.replace("NEXT", f"{number:04}")
        if kind == "!!!":
            self._changed.update(file.glob("*") if file.is_dir() else {file})
            output, _ = self._start(text.split(), stderr=subprocess.DEVNULL).communicate()
            if not file.exists():
                file.write_bytes(output)
            return
        self._changed.add(file)
        for hunk in text.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            before, after = ("".join(x[1:] for x in lines if x[0] != sign) for sign in "+-")
            old = file.read_text() if file.exists() else ""
            assert before in old, f"{path} no longer contains this; update its example:\n{before}"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(old.replace(before, after, 1) if before else after)

    def reset(self) -> None:
        """Undo all changes."""
        for file in self._changed:
            original = ROOT / file.relative_to(self._root)
            if original.exists():
                shutil.copy2(original, file)
            else:
                file.unlink(missing_ok=True)
        self._changed.clear()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    tree = Tree(tmp_path_factory.mktemp("tree"))
    yield tree
    tree.close()


def mentions(checklist: str) -> dict[str, bool]:
    """Return the files and folders that a checklist names, and whether a test notices their omission."""
    references = re.findall(r"(?:`([\w./*-]+)`|\]\(([\w./-]+)[^)]*\))( \(checked\))?", checklist)
    return {code or f"docs/{link.removeprefix('../')}": bool(mark) for code, link, mark in references}


def is_named(path: str, name: str) -> bool:
    """Whether a checklist's `name` is a file, or a folder of it."""
    names = {name, f"{SOURCE}{name}"}
    return path in names or any(n.endswith("/") and path.startswith(n) for n in names)


def test_every_checklist_has_an_example() -> None:
    assert EXAMPLES.keys() == CHECKLISTS.keys()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_checklist_lists_every_file_that_the_described_change_requires(kind: str, tree: Tree) -> None:
    listed = mentions(CHECKLISTS[kind])
    gates = EXAMPLES[kind].partition("\n")[0].removeprefix("gates ")
    changes = re.findall(r"^(---|!!!) (.+)\n((?:(?!---|!!!).+\n)*)", EXAMPLES[kind], re.MULTILINE)
    for mark, path, text in changes:
        assert any(is_named(path, name) for name in listed), f"the checklist does not name {path}"
        tree.change(path, mark, text)
    try:
        if errors := tree.errors(gates):
            pytest.fail(f"The complete change fails:\n{errors}")
        for name in (name for name, is_checked in listed.items() if is_checked):
            tree.reset()
            rest = [change for change in changes if not is_named(change[1], name)]
            assert len(rest) < len(changes), f"the example does not change {name}"
            for mark, path, text in rest:
                tree.change(path, mark, text)
            assert tree.errors(gates), f"no test notices that {name} is missing"
    finally:
        tree.reset()
