"""A job's packages on top of the base: only the difference, in order, errors that name them
(spec/program#arguments, spec/runtimes#packages)."""

import sys
from pathlib import Path

import pytest

from tests.commands import execute
from tests.contract.runtimes.conftest import Workshop, copy_template, sdist
from tests.e2e.packages import archived
from trainshed.core.packages import JobPackage
from trainshed.runtimes.families import format_minor
from trainshed.runtimes.installer import Installer
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.port import PackageFailed, PreparedRuntime
from trainshed.runtimes.prefix import base_of, derive_prefix, make_prefix

_SETUP = (
    "from setuptools import setup, find_packages\n"
    "setup(name={name!r}, version={version!r}, packages=find_packages(), install_requires={requires!r},\n"
    "      entry_points={{'console_scripts': ['{name}-run={name}.task:main']}})\n"
)


def _package(
    workshop: Workshop, name: str, requires: list[str], says: str = "hello", version: str = "0.1"
) -> str:
    setup = _SETUP.format(name=name, version=version, requires=requires)
    task = f"def main():\n    print({says!r})\n\n\nif __name__ == '__main__':\n    main()\n"
    modules = {f"{name}/__init__.py": "", f"{name}/task.py": task}
    uri = f"gs://bucket/job-2026-11-20-03:24:25.811/{says}/{name}-{version}.tar.gz"
    workshop.objects.content[uri] = sdist(name, setup, modules, version)
    return uri


def _site(prepared: PreparedRuntime) -> list[str]:
    layer = Path(prepared.template).parent
    (site,) = layer.glob("lib/python3*/site-packages")
    return sorted(path.name for path in site.iterdir())


def test_a_package_that_needs_nothing_new_is_all_that_is_installed(
    workshop: Workshop, tmp_path: Path
) -> None:
    uri = _package(workshop, "trainer", ["numpy>=1.20", "scikit-learn", "cloudml-hypertune"])
    assert workshop.runtimes.ready(workshop.choice, (JobPackage(uri),)) is None
    prepared = workshop.prepare(uri)
    assert _site(prepared) == ["_trainshed_base.pth", "trainer", "trainer-0.1.dist-info"]
    assert any("trainer 0.1" in notice for notice in prepared.notices)
    replica = copy_template(prepared, tmp_path)
    assert replica.run("python3", "-m", "trainer.task").stdout == "hello\n"
    assert replica.run("trainer-run").stdout == "hello\n"
    replica.python("import numpy, trainer")
    assert "trainer" in replica.run("pip", "list").stdout


def test_what_the_base_lacks_or_has_in_another_version_goes_into_the_layer(
    workshop: Workshop, tmp_path: Path
) -> None:
    version = copy_template(workshop.base, tmp_path / "plain").python(
        "import joblib; print(joblib.__version__)"
    )
    uri = _package(workshop, "picky", ["six", f"joblib!={version}"])
    prepared = workshop.prepare(uri)
    assert {"six.py", "joblib", "picky"} <= set(_site(prepared))
    assert "numpy" not in _site(prepared)
    assert f"(instead of {version})" in prepared.notices[0]
    replica = copy_template(prepared, tmp_path / "replica")
    assert replica.python("import joblib; print(joblib.__version__)") != version


def test_packages_are_installed_in_order_and_the_later_wins(
    workshop: Workshop, tmp_path: Path
) -> None:
    """spec/program#arguments: packages installed first, in order."""
    first = _package(workshop, "twice", [], says="first", version="0.2")
    second = _package(workshop, "twice", [], says="second", version="0.1")
    replica = copy_template(workshop.prepare(first, second), tmp_path / "one")
    assert replica.run("python", "-m", "twice.task").stdout == "second\n"
    # The first way has failed in the installer's words, and the log says that this is not the end.
    assert any(line.startswith("Wheels alone will not do") for line in workshop.messages)


def test_a_package_may_need_another_of_the_same_job(workshop: Workshop, tmp_path: Path) -> None:
    needy = _package(workshop, "needy", ["private-only-here"])
    setup = (
        "from setuptools import setup\n"
        "setup(name='private-only-here', version='1.0', py_modules=['hidden'])\n"
    )
    private = "gs://bucket/private_only_here-1.0.tar.gz"
    workshop.objects.content[private] = sdist(
        "private_only_here", setup, {"hidden.py": ""}, version="1.0"
    )
    replica = copy_template(workshop.prepare(needy, private), tmp_path)
    replica.python("import needy, hidden")


def test_a_build_that_asks_for_another_backend_gets_it(workshop: Workshop, tmp_path: Path) -> None:
    uri = "gs://bucket/flitted-0.1.tar.gz"
    pyproject = (
        "[build-system]\nrequires = ['flit_core>=3.4']\nbuild-backend = 'flit_core.buildapi'\n"
        "[project]\nname = 'flitted'\nversion = '0.1'\ndescription = 'x'\n"
    )
    workshop.objects.content[uri] = sdist(
        "flitted", "", {"pyproject.toml": pyproject, "flitted/__init__.py": ""}
    )
    copy_template(workshop.prepare(uri), tmp_path).python("import flitted")


def test_old_pandas_whose_metadata_uv_cannot_read_can_be_had(tmp_path: Path) -> None:
    """`pytz (>=2011k)`; public programs ask for it in their setup scripts."""
    lines: list[str] = []
    request = ["--dry-run", "--python-version", "3.7", "--only-binary", ":all:", "pandas==0.24.2"]
    installer = Installer(tmp_path / "cache")
    installer.install(Path(sys.executable), tmp_path / "site", request, lines.append)
    assert "+ pandas 0.24.2" in lines[-1]


def test_what_needs_something_without_a_wheel_is_not_had_in_an_old_version(
    workshop: Workshop,
) -> None:
    """Hydra 1 needs an antlr4-python3-runtime that is released as source alone; 0.11 and a pre-release of 1.4
    do not."""
    prepared = workshop.prepare(_package(workshop, "configured", ["hydra-core", "six"]))
    (hydra,) = [name for name in _site(prepared) if name.startswith("hydra_core-")]
    assert hydra.startswith("hydra_core-1.3.")
    assert any("what has no wheel is built" in line for line in workshop.messages)


def test_a_package_that_cannot_be_installed_shows_the_installers_words(workshop: Workshop) -> None:
    uri = "gs://bucket/broken-0.1.tar.gz"
    workshop.objects.content[uri] = sdist("broken", "raise SystemExit('no luck')\n", {})
    with pytest.raises(PackageFailed) as failed:
        workshop.prepare(uri)
    assert uri in str(failed.value)
    assert "no luck" in str(failed.value)
    assert str(workshop.cache) not in str(failed.value)
    layers = workshop.cache / "layers" / ".drafts"
    assert not list(layers.iterdir())


def test_a_package_is_what_its_setup_script_says_and_not_what_its_file_is_called(
    workshop: Workshop, tmp_path: Path
) -> None:
    """facts/packaging#packages: public samples pack a directory by hand, with metadata that is none, and call
    the file as they like."""
    nameless = "import setuptools\nsetuptools.setup(packages=setuptools.find_packages())\n"
    setup = "from setuptools import setup\nsetup(name='real', version='1.0', packages=['real'])\n"
    metadata = "Metadata-Version: 1.0\nName: CIFAR10 image classification\nVersion: 0.0.0\n"
    packages = {
        "gs://bucket/hand/trainer_cifar10.tar.gz": {"setup.py": nameless, "PKG-INFO": metadata}
        | {"trainer/__init__.py": "", "trainer/task.py": "print('classified')\n"},
        "gs://bucket/hand/other-0.1.tar.gz": {"setup.py": setup, "real/__init__.py": "VALUE = 7\n"},
    }
    for uri, files in packages.items():
        workshop.objects.content[uri] = archived(
            {f"custom/{path}": text for path, text in files.items()}
        )
    replica = copy_template(workshop.prepare(*packages), tmp_path)
    assert replica.run("python3", "-m", "trainer.task").stdout == "classified\n"
    assert replica.python("import real; print(real.VALUE)") == "7"


def test_path_files_of_the_base_are_read_for_the_base(tmp_path: Path) -> None:
    """spec/runtimes#packages: old packages in namespaces, google-cloud ones say, have path files that look
    for what lies beside them."""
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
        seen = done.stdout.replace("dist-", "site-")  # Debian's name of it leads to ours.
        assert (seen, done.stderr) == (f"42 {layer.site} {base.site}\n", ""), minor
        assert base_of(layer.root) == base.root
