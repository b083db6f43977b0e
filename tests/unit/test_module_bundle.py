"""ADR 100: agents find their modules in one file, and as ever where that is of no use to them."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainshed.engines.remote.module_bundle import BEGIN, ModuleBundle
from trainshed.engines.remote.options import module_command, module_paths

_LOADED = "EOFError: the agent's document broke off"
"""What an agent ends with that is given no document: by then it has loaded what it needs to read one."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Where modules are looked for; the last one is for tests to put something into."""
    return [*module_paths(), str(tmp_path_factory.mktemp("packages"))]


@pytest.fixture(scope="module")
def bundle(paths: list[str], tmp_path_factory: pytest.TempPathFactory) -> ModuleBundle:
    made = ModuleBundle(tmp_path_factory.mktemp("cache"), paths)
    assert made.path() == ""
    made.wait()
    return made


def _end(argv: Sequence[str]) -> str:
    """What an agent complains of that is given no document."""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert done.returncode
    return done.stderr


def test_an_agent_finds_all_modules_in_the_bundle(bundle: ModuleBundle) -> None:
    *interpreter, name, code = module_command("node", bundle).argv[:7]
    # Nowhere else is there anything of ours.
    told = _end([*interpreter, name, code])
    assert told.rstrip().endswith(_LOADED)
    # Where each is from is told as ever.
    assert 'opening.py", line' in told and "raise EOFError(" in told


def test_what_comes_after_programs_is_in_the_bundle_too(bundle: ModuleBundle) -> None:
    later = "from trainshed.engines.remote import agent_process; print(agent_process.__file__)"
    *interpreter, _, name, code = module_command("node", bundle).argv[:7]
    begun = BEGIN.partition("from trainshed")[0] + later
    told = subprocess.check_output([*interpreter, begun, name, code], text=True)
    assert told.rstrip().endswith("engines/remote/agent_process.py")


def test_a_service_of_the_same_code_takes_what_is_there(
    bundle: ModuleBundle, paths: list[str]
) -> None:
    path = Path(bundle.path())
    before = path.stat().st_ino
    # A service's working directory is among them, and Python writes beside modules, too.
    Path(paths[-1], "notes.txt").touch()
    Path(paths[-1], "__pycache__").mkdir()
    other = ModuleBundle(path.parent, paths)
    other.path()
    other.wait()
    assert other.path() == str(path) and path.stat().st_ino == before


def test_another_version_of_a_package_is_not_passed_over(
    bundle: ModuleBundle, paths: list[str]
) -> None:
    Path(paths[-1], "msgspec-99.dist-info").mkdir()
    other = ModuleBundle(Path(bundle.path()).parent, paths)
    other.path()
    other.wait()
    assert other.path() != bundle.path()


def test_two_of_one_service_are_made_at_once(tmp_path: Path) -> None:
    """Those of two clusters, say."""
    both = [ModuleBundle(tmp_path, module_paths()) for _ in range(2)]
    for one in both:
        one.path()
    for one in both:
        one.wait()
    assert both[0].path() == both[1].path() != ""
    assert [file.name for file in tmp_path.iterdir()] == [Path(both[0].path()).name]


@pytest.mark.parametrize("of_no_use", ["", "missing", "other", "short", "torn"])
def test_a_bundle_of_no_use_is_passed_over(
    of_no_use: str, bundle: ModuleBundle, tmp_path: Path
) -> None:
    """There is none, it is another build's, or only a part of it is there."""
    whole = Path(bundle.path()).read_bytes()
    path = tmp_path / "modules"
    given = {
        "other": b"'2.7.18'\n" + whole.partition(b"\n")[2],
        "short": whole[:1000],
        "torn": whole[:40_000],
    }
    if of_no_use in given:
        path.write_bytes(given[of_no_use])
    *interpreter, name, _ = module_command("node").argv[:7]
    code = str(path) if of_no_use else ""
    assert _end([*interpreter, name, code, *module_paths()]).rstrip().endswith(_LOADED)
