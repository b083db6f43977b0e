"""Packages that a running program installs: they are usable immediately, override the environment,
and belong to that replica only (spec/runtimes#installs)."""

import zipfile
from pathlib import Path

import pytest

from tests.caches import of_most_jobs
from tests.contract.engines.conftest import PRIMARY, EngineHarness
from trainshed.core.launch import Software
from trainshed.core.names import JobUid
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.prefix import Prefix

PIP = "pip install -q --disable-pip-version-check --no-index --no-deps --find-links $WHEELS"
SHOWN = """python3 -c 'import importlib.metadata as m, sys
for name in sys.argv[1:]: print(name, __import__(name).__version__, m.version(name))' """
INSTALLS_AND_IMPORTS = """
import os, subprocess, sys
def run(*options):
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    subprocess.check_call([*command, "--find-links", os.environ["WHEELS"], *options])
run(*sys.argv[1:], "own_package")
import own_package
print(own_package.__version__)
"""


def wheel(directory: Path, name: str, version: str) -> None:
    """Write a wheel with a module and a command that both print the version."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"__version__ = {version!r}\ndef main(): print({version!r})\n",
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": f"[console_scripts]\n{name}-version = {name}:main\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(directory / f"{name}-{version}-py3-none-any.whl", "w") as made:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            made.writestr(path, text)


@pytest.fixture(scope="module")
def environment() -> Prefix:
    environment = of_most_jobs()
    assert environment is not None
    return environment


class InstallRunner:
    """Runs shell scripts in the environment of most jobs, with wheels of three packages."""

    def __init__(self, harness: EngineHarness, environment: Prefix, wheels: Path) -> None:
        self._harness = harness
        minor = environment.python.partition(".")
        interpreter = Interpreters().get((int(minor[0]), int(minor[2])))
        assert interpreter is not None
        places = (str(environment.root), *interpreter.places, str(wheels))
        path = (str(environment.scripts),)
        self._software = Software(str(environment.template), path, read_only=places)
        self._environ = (("WHEELS", str(wheels)),)
        for name, version in (("own_package", "1.0"), ("own_package", "2.0"), ("idna", "0.1")):
            wheel(wheels, name, version)

    async def run(self, *argv: str, code: int = 0) -> list[str]:
        """Run a command, and return its printed lines."""
        uid = await self._harness.run(*argv, software=self._software, environ=self._environ)
        return await self._output(uid, 1, code)

    async def run_twice(self, first: str, second: str) -> list[str]:
        """Run two scripts as consecutive incarnations of one replica."""
        uid = await self._harness.run("bash", "-ec", first, software=self._software, environ=self._environ)
        await self._output(uid, 1, 0)
        plan = self._harness.plan(
            uid, "bash", "-ec", second, incarnation=2, software=self._software, environ=self._environ
        )
        await self._harness.engine.launch([plan])
        return await self._output(uid, 2, 0)

    async def _output(self, uid: JobUid, incarnation: int, code: int) -> list[str]:
        end = await self._harness.exit(uid, PRIMARY, incarnation)
        texts = [str(text) for text in self._harness.texts(uid)]
        assert end.exit.exit_code == code, texts
        return texts


@pytest.fixture
def runner(harness: EngineHarness, environment: Prefix, tmp_path: Path) -> InstallRunner:
    (wheels := tmp_path / "wheels").mkdir()
    wheels.chmod(0o755)
    return InstallRunner(harness, environment, wheels)


@pytest.mark.parametrize("options", [(), ("--user",)])
async def test_program_can_import_a_package_after_installing_the_package(
    runner: InstallRunner, options: tuple[str, ...]
) -> None:
    """The user site directory did not exist when Python started, so it was not on its path."""
    assert await runner.run("python3", "-c", INSTALLS_AND_IMPORTS, *options) == ["2.0"]


async def test_last_installed_version_of_a_package_overrides_earlier_versions(runner: InstallRunner) -> None:
    """Earlier, a second version left the first in place, and a pinned package of the environment
    was not replaced."""
    script = f"""
{PIP} own_package==1.0; {PIP} own_package==2.0; own_package-version; {SHOWN} own_package
{PIP} --user own_package==1.0; own_package-version; {SHOWN} own_package
{PIP} --upgrade own_package; {SHOWN} own_package
echo own_package==1.0 > requirements.txt; python3 -m pip freeze > before
{PIP} -r requirements.txt; {SHOWN} own_package
test -z "$(pip list 2>/dev/null | grep -E 'idna +0.1')"; {PIP} idna==0.1; {SHOWN} idna
pip list 2>/dev/null | grep -E '^(idna|own.package) ' | tr -s ' '
pip uninstall -q -y own_package; python3 -c 'import own_package' 2>/dev/null || echo gone
"""
    assert await runner.run("bash", "-ec", script) == [
        *("2.0", "own_package 2.0 2.0"),
        *("1.0", "own_package 1.0 1.0"),
        *("own_package 2.0 2.0", "own_package 1.0 1.0"),
        *("idna 0.1 0.1", "idna 0.1", "own_package 1.0"),
        "gone",
    ]


async def test_packages_installed_by_a_program_are_not_visible_to_other_replicas(
    runner: InstallRunner, environment: Prefix
) -> None:
    before = sorted(environment.template.rglob("*"))
    again = await runner.run_twice(f"{PIP} idna==0.1", f"{SHOWN} idna")
    assert again == ["idna 0.1 0.1"], "as its other files, it stays for the next incarnation"
    assert "idna 0.1 0.1" not in await runner.run("bash", "-ec", f"{SHOWN} idna")
    assert sorted(environment.template.rglob("*")) == before
    writes = "touch $VIRTUAL_ENV/mine; touch $1/theirs 2>/dev/null || echo refused"
    if await runner.run("bash", "-c", "echo $VIRTUAL_ENV") == [str(environment.template)]:
        assert await runner.run("bash", "-c", writes, "", str(environment.root)) == ["refused"]


@pytest.mark.parametrize("leaves", ["ln -s /etc", "touch"])
async def test_symlink_in_place_of_the_python_copy_is_not_followed(
    runner: InstallRunner, leaves: str
) -> None:
    """The program owns its directory, so it can leave a link there, and another one for an
    unfinished copy."""
    left = f'rm -r "$HOME/python"; {leaves} "$HOME/python"; ln -s /etc "$HOME/python.new"'
    lines = await runner.run_twice(left, "python3 -c 'print(1)'; ls -d $VIRTUAL_ENV/passwd || true")
    assert lines[0] == "1" and "No such file" in lines[1]
