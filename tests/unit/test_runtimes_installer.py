"""Tests of running uv: its environment, pip's configuration, its output (spec/runtimes#builds), and the cause
of failures."""

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
    """Return an installer whose uv is this script."""
    fake = tmp_path / "uv"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    known = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "UV_CONFIG_FILE": "/none", **environ}
    return Installer(tmp_path / "cache", known, str(fake), limit_seconds=limit)


def test_service_variables_are_hidden_from_setup_scripts(tmp_path: Path) -> None:
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


def test_service_closes_its_uv_cache_to_other_users_but_not_the_cache_of_an_operator(tmp_path: Path) -> None:
    """uv creates lock files that all users may write. The service does not change the permissions of an
    operator's cache."""
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
def test_environments_share_files_only_with_the_package_cache_of_the_service(
    tmp_path: Path, theirs: dict[str, str], mode: str
) -> None:
    """Shared files use disk space once. An operator's cache is never made read-only."""
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
def test_error_of_a_failed_installation_contains_cause_and_last_output_lines(
    tmp_path: Path, script: str, last: str, is_machine_fault: bool
) -> None:
    """spec/failures#out-of-memory: A killed installer is retried, for example after a lack of memory."""
    installer = _installer(tmp_path, script)
    with pytest.raises(InstallFailed) as failed:
        installer.install(Path("python"), tmp_path / "site", [], lambda line: None)
    assert failed.value.lines[-1].startswith(last)
    assert len(failed.value.lines) <= 25
    assert failed.value.is_machine_fault == is_machine_fault


def test_endless_setup_script_is_stopped_with_all_child_processes(tmp_path: Path) -> None:
    # The grandchild keeps the pipe open, so the installer returns only after its death.
    installer = _installer(tmp_path, "sleep 1000 & sleep 1000", 0.2)
    with pytest.raises(InstallFailed, match=r"after the limit of 0\.2 seconds"):
        installer.install(Path("python"), tmp_path / "site", [], lambda line: None)


def test_closing_the_installer_stops_running_installations(tmp_path: Path) -> None:
    installer = _installer(tmp_path, "echo started; sleep 1000")

    def close(line: str) -> None:
        if line == "started":
            installer.close()

    with pytest.raises(BuildFailed, match="is stopping"):
        installer.install(Path("python"), tmp_path / "site", [], close)


def test_error_of_requirement_file_hidden_by_the_sandbox_names_visible_paths() -> None:
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
def test_install_error_advises_how_to_correct_the_failed_requirement(line: str, text: str) -> None:
    lines = ("error: No solution found when resolving dependencies",) * line.startswith("  cause")
    assert InstallFailed((*lines, line)).correction.startswith(text)


def _translate(tmp_path: Path, text: str = "", **environ: str) -> dict[str, str]:
    file = tmp_path / "pip.conf"
    file.write_text(text)
    return index_environment({"HOME": str(tmp_path), **environ}, [file])


def test_pip_configuration_files_are_translated(tmp_path: Path) -> None:
    environ = _translate(
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


def test_no_package_index_is_used_if_pip_no_index_is_set(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    installer = Installer(tmp_path / "cache", environ)
    with pytest.raises(InstallFailed, match="not found in the provided package locations"):
        installer.install(Path(sys.executable), tmp_path / "site", ["requests"], print)


def test_pip_configuration_is_ignored_if_uv_is_configured(tmp_path: Path) -> None:
    mirror = "[global]\nindex-url = https://mirror.test\n"
    assert _translate(tmp_path, mirror, UV_DEFAULT_INDEX="https://uv.test") == {}
    settings = tmp_path / ".config" / "uv"
    settings.mkdir(parents=True)
    (settings / "uv.toml").write_text('[[index]]\nurl = "https://uv.test"\n')
    assert _translate(tmp_path, mirror) == {}


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
def test_configured_package_index_is_detected(
    tmp_path: Path, text: str, environ: dict[str, str], has_index: bool
) -> None:
    """Builds for CPUs are requested only if no package index is configured (`Release.first`)."""
    file = tmp_path / "pip.conf"
    file.write_text(text)
    assert configures_indexes({"HOME": str(tmp_path), **environ}, [file]) is has_index


def test_output_of_an_environment_smoke_test_is_shown_only_if_the_test_fails(tmp_path: Path) -> None:
    """Remarks of TensorFlow about missing GPUs are irrelevant for a successful build."""
    lines: list[str] = []
    installer = _installer(tmp_path, "false")
    installer.run(["/bin/sh", "-c", "echo no libcudart"], tmp_path, lines.append)
    assert _without_heartbeats(lines) == []
    with pytest.raises(InstallFailed, match="no libcudart"):
        installer.run(["/bin/sh", "-c", "echo no libcudart; exit 1"], tmp_path, lines.append)
    assert _without_heartbeats(lines) == []


def test_heartbeats_are_reported_while_an_installer_prints_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT", 0.05)
    # The installer stays silent until a heartbeat is reported.
    silent = f"while [ ! -e {tmp_path}/heard ]; do sleep 0.02; done"
    lines: list[str] = []

    def hear(line: str) -> None:
        lines.append(line)
        if line.startswith("Still working since 'Downloading torch (180MiB)'"):
            (tmp_path / "heard").touch()

    script = f"echo 'Downloading torch (180MiB)'; {silent}; echo done"
    _installer(tmp_path, script, 30).install(Path("python"), tmp_path / "site", [], hear)
    assert _without_heartbeats(lines) == ["Downloading torch (180MiB)", "done"]


def _without_heartbeats(lines: list[str]) -> list[str]:
    """Return the lines without heartbeats, which a slow machine may produce at any time."""
    return [line for line in lines if not line.startswith("Still ")]


def test_build_messages_omit_small_packages_and_heartbeats_become_less_frequent() -> None:
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
    assert [line.rpartition(": ")[2] for line in lines] == ["5 s.", "10 s.", "20 s.", "40 s.", "80 s."]


def test_excessive_installer_output_is_limited() -> None:
    lines: list[str] = []
    narration = Narration(lines.append)
    for number in range(30_000):
        narration.add_line(f"line {number}")
    assert len(lines) == 10_001
    assert lines[-1] == "The output has more than 10000 lines; the rest is hidden."


def test_endless_output_line_of_an_installer_is_split_into_limited_pieces() -> None:
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


def test_output_reader_ends_although_a_child_process_keeps_the_pipe_open() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"first\nlast")
    line, end = os.pipe()
    os.close(end)
    assert list(output.lines(reader, 60, line)) == ["first", "last"]
    for handle in (reader, writer, line):
        os.close(handle)
