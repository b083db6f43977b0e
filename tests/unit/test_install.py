"""How ./dev gets its packages (tools/install.py)."""

import tomllib

from tools.install import locked

from tests.e2e.running import ROOT

LOCK = """\
a==1 \\
    --hash=sha256:aa
uv==0.1 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
uvloop==2 ; sys_platform != 'win32' \\
    --hash=sha256:dd
"""


def test_a_package_is_taken_out_of_a_lock_with_its_hashes() -> None:
    assert locked("uv", LOCK) == "uv==0.1 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc"
    assert locked("b", LOCK) == ""


def test_what_is_installed_first_is_in_every_lock() -> None:
    """The installer, and what a service loads, whose modules are compiled at once."""
    run, dev = ((ROOT / "locks" / name).read_text() for name in ("run.txt", "dev.txt"))
    assert "--hash" in locked("uv", run)
    names = [line.partition("==")[0] for line in run.splitlines() if not line.startswith(" ")]
    assert [name for name in names if locked(name, dev) != locked(name, run)] == []


def test_no_setting_of_uv_is_taken_for_a_requirement_without_a_hash() -> None:
    """With constraints there `./dev` would install by pip, which takes minutes."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"].get("uv", {})
    assert not [name for name in settings if name.endswith("-dependencies")]
