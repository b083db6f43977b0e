"""Replacing a file in one step."""

import os
from pathlib import Path

import pytest

from trainshed.replica.system import durable


def test_a_write_that_takes_only_a_part_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is nearly full takes a part without an error; a cut document must not replace a whole
    one."""
    write = os.write

    def part(handle: int, data: memoryview) -> int:
        return write(handle, data[:3])

    monkeypatch.setattr(os, "write", part)
    durable.write(str(tmp_path / "slots.json"), "the whole text", sync=False)
    assert (tmp_path / "slots.json").read_text() == "the whole text"
