"""Running uv: a clean environment, the last lines kept, whose fault it was."""

from pathlib import Path

import pytest

from trainshed.runtimes.installer import Installer, InstallFailed
from trainshed.runtimes.port import BuildFailed


def _uv(tmp_path: Path, script: str) -> str:
    fake = tmp_path / "uv"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    return str(fake)


def _installer(tmp_path: Path, script: str, **environ: str) -> Installer:
    known = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "UV_CONFIG_FILE": "/none", **environ}
    return Installer(tmp_path / "cache", known, _uv(tmp_path, script))


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
    assert f"--link-mode {mode} numpy" in lines[0]


def test_a_failure_has_the_last_lines(tmp_path: Path) -> None:
    installer = _installer(tmp_path, "seq 1 100; echo 'error: no such thing' >&2; exit 2")
    with pytest.raises(InstallFailed) as failed:
        installer.install(Path("python"), tmp_path / "site", [], lambda line: None)
    assert failed.value.lines[-1] == "error: no such thing"
    assert len(failed.value.lines) == 25
    assert not failed.value.is_machine_trouble


def test_a_network_failure_is_not_the_users_fault(tmp_path: Path) -> None:
    installer = _installer(tmp_path, "echo 'error: Failed to fetch: index'; exit 2")
    with pytest.raises(InstallFailed) as failed:
        installer.install(Path("python"), tmp_path / "site", [], lambda line: None)
    assert failed.value.is_machine_trouble


def test_an_installer_that_is_killed_is_not_the_users_fault(tmp_path: Path) -> None:
    """spec/failures#out-of-memory: what somebody kills, or the kernel for want of memory, is tried again."""
    installer = _installer(tmp_path, "echo Resolved; kill -9 $$")
    with pytest.raises(InstallFailed, match="killed from outside") as failed:
        installer.install(Path("python"), tmp_path / "site", [], lambda line: None)
    assert failed.value.is_machine_trouble


def test_a_setup_that_never_ends_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    known = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    # The grandchild holds the pipe open: only its death lets the installer see the end.
    fake = _uv(tmp_path, "sleep 1000 & sleep 1000")
    installer = Installer(tmp_path / "cache", known, fake, limit_seconds=0.2)
    with pytest.raises(InstallFailed, match=r"after the limit of 0\.2 seconds"):
        installer.install(Path("python"), tmp_path / "site", [], lambda line: None)


def test_closing_stops_what_is_under_way(tmp_path: Path) -> None:
    installer = _installer(tmp_path, "echo started; sleep 1000")

    def close(line: str) -> None:
        assert line == "started"
        installer.close()

    with pytest.raises(BuildFailed, match="being stopped"):
        installer.install(Path("python"), tmp_path / "site", [], close)


def test_whoever_names_a_file_that_is_not_seen_learns_what_is_seen() -> None:
    failure = InstallFailed(("error: Distribution not found at: file:///home/me/a.whl",))
    assert "visible_paths" in failure.correction
    assert "visible_paths" not in InstallFailed(("error: no such package",)).correction
