"""A job's packages on top of the base: only missing packages are installed, in order, and errors
identify them (spec/program#arguments, spec/runtimes#packages)."""

import asyncio
import sys
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.commands import execute
from tests.contract.runtimes.conftest import Workshop, content, copy_template, sdist
from tests.e2e.packages import tar_archive, wheel
from trainshed.core.packages import JobPackage
from trainshed.runtimes.families import format_minor
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.port import PackageFailed, PreparedRuntime
from trainshed.runtimes.prefix import base_of, derive_prefix, make_prefix
from trainshed.runtimes.service import LocalRuntimes, RuntimeSettings

_SETUP = (
    "from setuptools import setup, find_packages\n"
    "setup(name={name!r}, version='0.1', packages=find_packages(), install_requires={requires!r},\n"
    "      entry_points={{'console_scripts': ['{name}-run={name}.task:main']}})\n"
)


def _package(workshop: Workshop, name: str, requires: list[str]) -> str:
    setup = _SETUP.format(name=name, requires=requires)
    task = "def main():\n    print('hello')\n\n\nif __name__ == '__main__':\n    main()\n"
    modules = {f"{name}/__init__.py": "", f"{name}/task.py": task}
    uri = f"gs://bucket/job-2026-11-20-03:24:25.811/{name}-0.1.tar.gz"
    workshop.objects.content[uri] = sdist(name, setup, modules)
    return uri


def _with_build_backend(name: str, version: str, work: str = "pass") -> bytes:
    """Return a source distribution that contains its own build backend. The backend executes `work`
    before it builds the wheel."""
    file = f"{name}-{version}-py3-none-any.whl"
    backend = (
        "import pathlib\n"
        "def build_wheel(place, *_):\n"
        f"    {work}\n"
        f"    content = {wheel(name, '', version)!r}\n"
        f"    pathlib.Path(place, {file!r}).write_bytes(content)\n"
        f"    return {file!r}\n"
    )
    pyproject = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
    return sdist(name, "", {"pyproject.toml": pyproject, "backend.py": backend}, version)


def _site(prepared: PreparedRuntime) -> list[str]:
    layer = Path(prepared.template).parent
    (site,) = layer.glob("lib/python3*/site-packages")
    return sorted(path.name for path in site.iterdir())


def test_only_packages_missing_in_the_base_environment_are_installed(
    workshop: Workshop, tmp_path: Path
) -> None:
    """A package may need another package of the same job. Its setup script determines its name, not
    its file name (facts/packaging#packages): public samples pack a directory by hand, with
    invalid metadata and any file name."""
    needs = ["numpy>=1.20", "scikit-learn", "cloudml-hypertune", "private-only-here"]
    uri = _package(workshop, "trainer", needs)
    nameless = "import setuptools\nsetuptools.setup(packages=setuptools.find_packages())\n"
    setup = "import setuptools as s\ns.setup(name='private-only-here', version='1.0', packages=['real'])\n"
    metadata = "Metadata-Version: 1.0\nName: CIFAR10 image classification\nVersion: 0.0.0\n"
    packages = {
        "gs://bucket/hand/trainer_cifar10.tar.gz": {"setup.py": nameless, "PKG-INFO": metadata}
        | {"hand/__init__.py": "", "hand/task.py": "print('classified')\n"},
        "gs://bucket/hand/other-0.1.tar.gz": {"setup.py": setup, "real/__init__.py": "VALUE = 7\n"},
    }
    for name, files in packages.items():
        workshop.objects.content[name] = tar_archive({f"custom/{path}": text for path, text in files.items()})
    assert workshop.runtimes.ready(workshop.choice, (JobPackage(uri),)) is None
    prepared = workshop.prepare(uri, *packages)
    assert _site(prepared) == [
        "_trainshed_base.pth",
        *("hand", "hand-0.0.0.dist-info", "private_only_here-1.0.dist-info", "real"),
        *("trainer", "trainer-0.1.dist-info"),
    ]
    assert any("trainer 0.1" in notice for notice in prepared.notices)
    replica = copy_template(prepared, tmp_path)
    assert replica.run("python3", "-m", "trainer.task").stdout == "hello\n"
    assert replica.run("trainer-run").stdout == "hello\n"
    assert replica.run("python3", "-m", "hand.task").stdout == "classified\n"
    assert replica.python("import numpy, real, trainer; print(real.VALUE)") == "7"
    assert "trainer" in replica.run("pip", "list").stdout


def test_packages_that_are_missing_or_have_a_wrong_version_are_installed_into_the_layer(
    workshop: Workshop, tmp_path: Path
) -> None:
    """A package with another build backend gets that backend."""
    version = content(workshop.base)["joblib"]
    uri = _package(workshop, "picky", ["six", f"joblib!={version}"])
    flitted = "gs://bucket/flitted-0.1.tar.gz"
    pyproject = (
        "[build-system]\nrequires = ['flit_core>=3.4']\nbuild-backend = 'flit_core.buildapi'\n"
        "[project]\nname = 'flitted'\nversion = '0.1'\ndescription = 'x'\n"
    )
    workshop.objects.content[flitted] = sdist(
        "flitted", "", {"pyproject.toml": pyproject, "flitted/__init__.py": ""}
    )
    prepared = workshop.prepare(uri, flitted)
    assert {"six.py", "joblib", "picky", "flitted"} <= set(_site(prepared))
    assert "numpy" not in _site(prepared)
    assert f"(instead of {version})" in prepared.notices[0]
    replica = copy_template(prepared, tmp_path)
    assert replica.python("import flitted, joblib; print(joblib.__version__)") != version


def test_python_2_packages_can_use_implicit_relative_imports(workshop: Workshop, tmp_path: Path) -> None:
    """`import model` in `trainer.task` once meant `trainer.model` (runtimes up to 1.14). Modules of
    the standard library and of the environment take precedence."""
    setup = "import setuptools as s\ns.setup(name='trainer', version='0.1', packages=s.find_packages())\n"
    files = {
        "trainer/__init__.py": "",
        "trainer/task.py": "import idna, model, types\n"
        "print(model.NAME, bool(idna.encode), types.ModuleType)",
        "trainer/model.py": "from data.read import NAME",
        **{f"trainer/{name}.py": "raise SystemExit('not this one')" for name in ("idna", "types")},
        "trainer/data/__init__.py": "",
        "trainer/data/read.py": "import names; NAME = names.NAME",
        "trainer/data/names.py": "NAME = 'own'",
    }
    uri = "gs://bucket/old/trainer-0.1.tar.gz"
    workshop.objects.content[uri] = sdist("trainer", setup, files)
    packages = (JobPackage(uri),)
    old = replace(workshop.choice, implicit_imports=True)
    for choice, end in ((old, 0), (workshop.choice, 1)):
        prepared = asyncio.run(workshop.runtimes.prepare(choice, packages))
        assert workshop.runtimes.ready(choice, packages) == prepared
        (root := tmp_path / str(end)).mkdir()
        done = copy_template(prepared, root).run("python3", "-m", "trainer.task")
        assert done.returncode == end, done.stderr
        if choice is old:
            assert done.stdout == "own True <class 'module'>\n"


def test_later_package_of_a_job_overrides_an_earlier_package_with_the_same_name(
    workshop: Workshop, tmp_path: Path
) -> None:
    """spec/program#arguments: packages are installed in order before the program starts."""
    packages = {
        f"gs://bucket/{text}/twice-{version}-py3-none-any.whl": wheel("twice", f"print({text!r})", version)
        for text, version in (("first", "0.2"), ("second", "0.1"))
    }
    workshop.objects.content.update(packages)
    replica = copy_template(workshop.prepare(*packages), tmp_path)
    assert replica.run("python", "-m", "twice").stdout == "second\n"
    # The first attempt failed with the installer's message, and the log shows that another one follows.
    assert any(line.startswith("Wheels are not enough") for line in workshop.messages)


def test_old_pandas_with_invalid_metadata_can_be_installed(tmp_path: Path) -> None:
    """Setup scripts of public programs require pandas versions whose metadata contain `pytz (>=2011k)`."""
    lines: list[str] = []
    request = ["--dry-run", "--python-version", "3.7", "--only-binary", ":all:", "pandas==0.24.2"]
    installer = Installer(tmp_path / "cache")
    installer.install(Path(sys.executable), tmp_path / "site", request, lines.append)
    assert "+ pandas 0.24.2" in lines[-1]


def test_requirement_without_wheel_does_not_select_an_old_version(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra 1 needs an antlr4-python3-runtime that is released only as source. 0.11 and a
    pre-release of 1.4 do not."""
    for version, needs in (("0.11", ()), ("1.3.0", ("source-alone",)), ("1.4.0.dev1", ())):
        name = f"hydra-{version}-py3-none-any.whl"
        (tmp_path / name).write_bytes(wheel("hydra", "", version, needs))
    (tmp_path / "source_alone-1.0.tar.gz").write_bytes(_with_build_backend("source_alone", "1.0"))
    uri = "gs://bucket/configured-0.1-py3-none-any.whl"
    workshop.objects.content[uri] = wheel("configured", "", needs=["hydra"])
    settings, lines = RuntimeSettings(terms=lambda: workshop.terms), list[str]()
    # With files on the disk, the first attempt would use its own build.
    serve = partial(SimpleHTTPRequestHandler, directory=tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), serve) as index:
        threading.Thread(target=index.serve_forever, daemon=True).start()
        monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{index.server_port}/")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        runtimes = LocalRuntimes(workshop.cache, workshop.objects, settings, now=time.monotonic_ns)
        packages = (JobPackage(uri),)
        prepared = asyncio.run(runtimes.prepare(workshop.choice, packages, lines.append))
        runtimes.close()
        index.shutdown()
    assert {"hydra-1.3.0.dist-info", "source_alone-1.0.dist-info"} <= set(_site(prepared))
    assert any("Building missing wheels from source" in line for line in lines)


def test_failed_installation_shows_the_installers_message(workshop: Workshop) -> None:
    uri = "gs://bucket/broken-0.1.tar.gz"
    workshop.objects.content[uri] = _with_build_backend("broken", "0.1", "raise SystemExit('no luck')")
    with pytest.raises(PackageFailed) as failed:
        workshop.prepare(uri)
    assert uri in str(failed.value)
    assert "no luck" in str(failed.value)
    assert str(workshop.cache) not in str(failed.value)
    layers = workshop.cache / "layers" / ".drafts"
    assert not list(layers.iterdir())


def test_pth_files_of_the_base_environment_are_evaluated_in_its_own_directory(tmp_path: Path) -> None:
    """spec/runtimes#packages: old packages in namespaces, for example google-cloud ones, have path
    files that search next to themselves."""
    interpreters = Interpreters()
    for minor in interpreters.found():
        interpreter = interpreters.get(minor)
        assert interpreter is not None
        place = tmp_path / format_minor(minor)
        base = make_prefix(place / "base", interpreter)
        (base.site / "spaced" / "part").mkdir(parents=True)
        (base.site / "spaced" / "part" / "__init__.py").write_text("VALUE = 42\n")
        (base.site / "spaced-nspkg.pth").write_text(
            "import os, sys, types; m = sys.modules.setdefault('spaced', types.ModuleType('spaced')); "
            "m.__path__ = [os.path.join(sys._getframe(1).f_locals['sitedir'], 'spaced')]\n"
        )
        layer = derive_prefix(place / "layer", base, interpreter)
        code = "import spaced.part, sys; print(spaced.part.VALUE, *sys.path[-2:])"
        done = execute(layer.executable, "-c", code, env={})
        # Debian's directory name refers to the usual one.
        seen = done.stdout.replace("dist-", "site-")
        assert (seen, done.stderr) == (f"42 {layer.site} {base.site}\n", ""), minor
        assert base_of(layer.root) == base.root
