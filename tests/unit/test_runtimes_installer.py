"""Running uv: a clean environment, pip's configuration, what is heard of it and how that is read
(spec/runtimes#builds), the last lines kept, whose fault it was."""

import os
import sys
import threading
from pathlib import Path

import pytest

from trainshed.runtimes import installer as module
from trainshed.runtimes import output
from trainshed.runtimes.indexes import configures_indexes, index_environment
from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.output import Narration
from trainshed.runtimes.port import BuildFailed


def _installer(tmp_path: Path, script: str, limit: float = 600, /, **environ: str) -> Installer:
    """Whose uv is that script."""
    fake = tmp_path / "uv"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    known = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "UV_CONFIG_FILE": "/none", **environ}
    return Installer(tmp_path / "cache", known, str(fake), limit_seconds=limit)


def test_the_services_own_variables_do_not_reach_setup_scripts(tmp_path: Path) -> None:
    """spec/invariants#secrets."""
    lines: list[str] = []
    installer = _installer(
        tmp_path, "env", SECRET_TOKEN="hidden", https_proxy="http://proxy.test", UV_PYTHON="3.8"
    )
    installer.install(Path("python"), tmp_path / "site", ["numpy"], lines.append)
    text = "\n".join(lines)
    assert "hidden" not in text
    assert "UV_PYTHON=" not in text
    assert "https_proxy=http://proxy.test" in text
    assert f"UV_CACHE_DIR={tmp_path / 'cache'}" in text
    assert f"TMPDIR={tmp_path}/.tmp-" in text and not list(tmp_path.glob(".tmp-*"))


def test_our_own_uv_cache_is_closed_to_other_users(tmp_path: Path) -> None:
    """uv lets everybody write its lock files; an operator's cache is as he made it."""
    own, theirs = tmp_path / "cache", tmp_path / "theirs"
    for place in (own, theirs):
        place.mkdir()
        place.chmod(0o755)
    for environ in ({}, {"UV_CACHE_DIR": str(theirs)}):
        installer = _installer(tmp_path, "true", **environ)
        installer.install(Path("python"), tmp_path / "site", [], lambda line: None)
    assert own.stat().st_mode & 0o777 == 0o700
    assert theirs.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(("theirs", "mode"), [({}, "hardlink"), ({"UV_CACHE_DIR": "/o"}, "copy")])
def test_environments_share_files_with_our_own_cache_alone(
    tmp_path: Path, theirs: dict[str, str], mode: str
) -> None:
    """They take their room once; an operator's cache is never made read-only."""
    lines: list[str] = []
    installer = _installer(tmp_path, 'echo "$@"', **theirs)
    installer.install(Path("/p"), tmp_path / "site", ["numpy"], lines.append, linked=True)
    assert f"--link-mode {mode} numpy" in "\n".join(lines)


@pytest.mark.parametrize(
    ("script", "last", "is_machine_fault"),
    [
        ("seq 1 100; echo 'error: no such thing' >&2; exit 2", "error: no such thing", False),
        ("echo 'error: Failed to fetch: index'; exit 2", "error: Failed to fetch: index", True),
        ("echo Resolved; kill -9 $$", "The installer was killed from outside", True),
    ],
    ids=["the user's", "of the network", "killed"],
)
def test_a_failure_says_whose_it_is_and_has_the_last_lines(
    tmp_path: Path, script: str, last: str, is_machine_fault: bool
) -> None:
    """spec/failures#out-of-memory: what somebody kills, or the kernel for want of memory, is tried again."""
    installer = _installer(tmp_path, script)
    with pytest.raises(InstallFailed) as failed:
        installer.install(Path("python"), tmp_path / "site", [], lambda line: None)
    assert failed.value.lines[-1].startswith(last)
    assert len(failed.value.lines) <= 25
    assert failed.value.is_machine_fault == is_machine_fault


def test_a_setup_that_never_ends_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    # The grandchild holds the pipe open: only its death lets the installer see the end.
    installer = _installer(tmp_path, "sleep 1000 & sleep 1000", 0.2)
    with pytest.raises(InstallFailed, match=r"after the limit of 0\.2 seconds"):
        installer.install(Path("python"), tmp_path / "site", [], lambda line: None)


def test_closing_stops_what_is_under_way(tmp_path: Path) -> None:
    installer = _installer(tmp_path, "echo started; sleep 1000")

    def close(line: str) -> None:
        if line == "started":
            installer.close()

    with pytest.raises(BuildFailed, match="is stopping"):
        installer.install(Path("python"), tmp_path / "site", [], close)


def test_whoever_names_a_file_that_is_not_seen_learns_what_is_seen() -> None:
    failure = InstallFailed(("error: Distribution not found at: file:///home/me/a.whl",))
    assert "visible_paths" in failure.correction
    assert "visible_paths" not in InstallFailed(("error: no such package",)).correction


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "  cause: Because scikitlearn was not found in the package registry and you require "
            "scikitlearn, we can conclude that your requirements are unsatisfiable.",
            "The package index has no scikitlearn. Correct the name in your requirements (--requirements",
        ),
        ("  cause: Because there is no version of numpy==99.1 and", "No set of versions fits"),
        ("error: Failed to build `sklearn==0.0.post12`", "sklearn has no wheel for this Python"),
        ("error: something else", "Correct the package (its setup script"),
    ],
)
def test_a_requirement_that_cannot_be_installed_is_corrected_where_it_is_listed(
    line: str, text: str
) -> None:
    lines = ("error: No solution found when resolving dependencies",) * line.startswith("  cause")
    assert InstallFailed((*lines, line)).correction.startswith(text)


def _told(tmp_path: Path, text: str = "", **environ: str) -> dict[str, str]:
    file = tmp_path / "pip.conf"
    file.write_text(text)
    return index_environment({"HOME": str(tmp_path), **environ}, [file])


def test_files_are_translated(tmp_path: Path) -> None:
    environ = _told(
        tmp_path,
        "[global]\n"
        "index-url = https://mirror.test/simple\n"
        "find-links = /wheels /more\n"
        "extra-index-url =\n"
        "    https://a.test/simple\n"
        "    https://b.test/simple\n"
        "trusted-host = mirror.test\n",
    )
    assert environ == {
        "UV_DEFAULT_INDEX": "https://mirror.test/simple",
        "UV_FIND_LINKS": "/wheels,/more",
        "UV_INDEX": "https://a.test/simple https://b.test/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_INSECURE_HOST": "mirror.test",
    }


def test_a_machine_without_an_index_asks_none(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    installer = Installer(tmp_path / "cache", environ)
    with pytest.raises(InstallFailed, match="not found in the provided package locations"):
        installer.install(Path(sys.executable), tmp_path / "site", ["requests"], print)


def test_where_uv_is_configured_pip_is_left_alone(tmp_path: Path) -> None:
    mirror = "[global]\nindex-url = https://mirror.test\n"
    assert _told(tmp_path, mirror, UV_DEFAULT_INDEX="https://uv.test") == {}
    settings = tmp_path / ".config" / "uv"
    settings.mkdir(parents=True)
    (settings / "uv.toml").write_text('[[index]]\nurl = "https://uv.test"\n')
    assert _told(tmp_path, mirror) == {}


@pytest.mark.parametrize(
    ("text", "environ", "has_index"),
    [
        ("", {}, False),
        ("[global]\ncert = /ca.pem\ntimeout = 60\n", {}, False),
        ("[global]\nindex-url = https://mirror.test/simple\n", {}, True),
        ("[install]\nfind-links = /wheels\n", {}, True),
        ("", {"PIP_EXTRA_INDEX_URL": "https://a.test"}, True),
        ("", {"UV_DEFAULT_INDEX": "https://a.test"}, True),
        ("", {"UV_TORCH_BACKEND": "cu130"}, True),
    ],
)
def test_whether_somebody_said_where_packages_come_from(
    tmp_path: Path, text: str, environ: dict[str, str], has_index: bool
) -> None:
    """Builds for CPUs are asked for where nobody did (`Release.first`)."""
    file = tmp_path / "pip.conf"
    file.write_text(text)
    assert configures_indexes({"HOME": str(tmp_path), **environ}, [file]) is has_index


def test_what_a_smoke_test_says_is_for_nobody_unless_it_fails(tmp_path: Path) -> None:
    """TensorFlow's remarks about missing GPUs are no news of a build; of a failed one they are."""
    lines: list[str] = []
    installer = _installer(tmp_path, "false")
    installer.run(["/bin/sh", "-c", "echo no libcudart"], tmp_path, lines.append)
    assert _but_signs_of_life(lines) == []
    with pytest.raises(InstallFailed, match="no libcudart"):
        installer.run(["/bin/sh", "-c", "echo no libcudart; exit 1"], tmp_path, lines.append)
    assert _but_signs_of_life(lines) == []


def test_a_silent_installer_gives_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT", 0.05)
    # It stays silent until it was heard that it lives.
    silent = f"while [ ! -e {tmp_path}/heard ]; do sleep 0.02; done"
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        if line.startswith("Still working since 'Downloading torch (180MiB)'"):
            (tmp_path / "heard").touch()

    script = f"echo 'Downloading torch (180MiB)'; {silent}; echo done"
    _installer(tmp_path, script, 30).install(Path("python"), tmp_path / "site", [], hear)
    assert _but_signs_of_life(lines) == ["Downloading torch (180MiB)", "done"]


def _but_signs_of_life(lines: list[str]) -> list[str]:
    """A slow machine may give one at any moment: until processes have ended, they are silent."""
    return [line for line in lines if not line.startswith("Still ")]


def test_narration_leaves_out_single_packages_and_doubles_the_time_between_signs_of_life() -> None:
    lines: list[str] = []
    narration = Narration(lines.append)
    for line in (
        "Resolved 140 packages in 538ms",
        "Downloading pillow (6.8MiB)",
        "Downloading six (900.5KiB)",
        "Downloading torch (180.4MiB)",
        "  Building wget==3.2",
        " Downloaded pillow",
        "      Built wget==3.2",
        "Prepared 115 packages in 7.23s",
        "Installed 140 packages in 240ms",
        *(f" + package{number}==1.0" for number in range(140)),
    ):
        narration.add_line(line)
    narration.end()
    assert lines == [
        "Resolved 140 packages in 538ms",
        "Downloading torch (180.4MiB)",
        "Installed 140 packages in 240ms",
    ]
    lines.clear()
    for _ in range(20):
        narration.add_silence()
    assert [line.rpartition(": ")[2] for line in lines] == [
        "5 s.",
        "10 s.",
        "20 s.",
        "40 s.",
        "80 s.",
    ]


def test_of_a_flood_only_so_much_is_told() -> None:
    lines: list[str] = []
    narration = Narration(lines.append)
    for number in range(30_000):
        narration.add_line(f"line {number}")
    assert len(lines) == 10_001
    assert lines[-1] == "The output has more than 10000 lines; the rest is hidden."


def test_a_line_that_does_not_end_is_cut() -> None:
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(b"x" * 1_000_000)

    writing = threading.Thread(target=write)
    writing.start()
    pieces = [line or "" for line in output.lines(reader, 60)]
    writing.join()
    os.close(reader)
    assert "".join(pieces) == "x" * 1_000_000
    assert max(map(len, pieces)) <= 1 << 18


def test_who_still_holds_the_other_end_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"first\nlast")
    line, end = os.pipe()
    os.close(end)
    assert list(output.lines(reader, 60, line)) == ["first", "last"]
    for handle in (reader, writer, line):
        os.close(handle)
