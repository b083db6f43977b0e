"""What is heard of an installer (spec/runtimes#builds: it says at every moment why a job waits)."""

import sys
from pathlib import Path

import pytest

from trainshed.runtimes import installer as module
from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.output import Narration


def test_what_a_smoke_test_says_is_for_nobody_unless_it_fails(tmp_path: Path) -> None:
    """TensorFlow's remarks about missing GPUs are no news of a build; of a failed one they are."""
    lines: list[str] = []
    known = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    installer = Installer(tmp_path / "cache", known, "/bin/false", limit_seconds=30)
    installer.run(["/bin/sh", "-c", "echo no libcudart"], tmp_path, lines.append)
    assert lines == []
    with pytest.raises(InstallFailed, match="no libcudart"):
        installer.run(["/bin/sh", "-c", "echo no libcudart; exit 1"], tmp_path, lines.append)
    assert lines == []


def test_a_silent_installer_gives_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT", 0.05)
    fake = tmp_path / "uv"
    # It stays silent until it was heard that it lives.
    fake.write_text(
        f"#!/bin/sh\necho 'Downloading torch (180MiB)'\n"
        f"while [ ! -e {tmp_path}/heard ]; do sleep 0.02; done\necho done\n"
    )
    fake.chmod(0o755)
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        if line.startswith("Still working since 'Downloading torch (180MiB)'"):
            (tmp_path / "heard").touch()

    known = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    installer = Installer(tmp_path / "cache", known, str(fake), limit_seconds=30)
    installer.install(Path(sys.executable), tmp_path / "site", [], hear)
    assert lines[-1] == "done"


def test_of_a_flood_only_so_much_is_told() -> None:
    lines: list[str] = []
    narration = Narration(lines.append)
    for number in range(30_000):
        narration.hear(f"line {number}")
    assert len(lines) == 10_001
    assert lines[-1] == "It has said more than 10000 lines; the rest is not shown."
