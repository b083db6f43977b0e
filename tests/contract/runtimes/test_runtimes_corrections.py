"""Corrections of wrong package requirements (facts/experiments#autologging), with the real uv and
empty wheels in a directory."""

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from trainshed.runtimes.installer import Installer

_SDK = "google-cloud-aiplatform"
_NEEDED = (
    *("alembic", "click", "cloudpickle", "databricks-cli", "docker", "entrypoints", "flask"),
    *("gitpython", "gunicorn", "importlib-metadata", "numpy", "packaging", "pandas"),
    *("prometheus-flask-exporter", "pytz", "pyyaml", "querystring-parser", "requests", "scipy"),
    *("sqlalchemy", "sqlparse"),
)
"""Requirements of MLflow 1.27.0; their versions are irrelevant here."""


def _wheel(index: Path, name: str, version: str, *needs: str) -> None:
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {need}" for need in needs] + ["Provides-Extra: autologging", ""]
    with zipfile.ZipFile(index / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join(metadata))
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The relevant part of the public index: the newest protobuf, and an MLflow that is
    incompatible with it."""
    made = tmp_path_factory.mktemp("index")
    _wheel(made, _SDK, "2.7.0", "protobuf<8", "mlflow<=2.16,>=1.27; extra == 'autologging'")
    for version in ("3.20.3", "5.29.6", "7.36.2"):
        _wheel(made, "protobuf", version)
    _wheel(made, "mlflow", "1.27.0", "protobuf>=3.12.0", *_NEEDED)
    _wheel(made, "mlflow", "2.16.0", "protobuf<6,>=3.12.0")
    for name in _NEEDED:
        _wheel(made, name, "99")
    return made


def _choose_packages(index: Path, scratch: Path, what: Sequence[str]) -> set[str]:
    installer = Installer(
        scratch / "cache", {"UV_FIND_LINKS": str(index), "UV_NO_INDEX": "1", "PATH": "/usr/bin"}
    )
    # The cache can be inside a user's project, whose settings must not apply.
    (scratch / "pyproject.toml").write_text("[project]\nname = 'a'\nversion = '1'\n")
    lines: list[str] = []
    site = scratch / "environments" / "site"
    site.mkdir(parents=True)
    installer.install(Path(sys.executable), site, ["--dry-run", *what], lines.append)
    installed = lines[-1].replace("+", "").split(",")
    return {"==".join(line.split()) for line in installed}


def test_autologging_extra_installs_a_compatible_mlflow(index: Path, tmp_path: Path) -> None:
    chosen = _choose_packages(index, tmp_path, [f"{_SDK}[autologging]==2.7.0"])
    assert chosen == {f"{_SDK}==2.7.0", "mlflow==2.16.0", "protobuf==5.29.6"}
