"""What packages say wrongly about what they need (facts/experiments#autologging). The real uv, over wheels
without content in a directory."""

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
"""By MLflow 1.27.0, without a version that matters here."""


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
    """What matters of the public index: the newest protobuf, and MLflow that does not go with it."""
    made = tmp_path_factory.mktemp("index")
    _wheel(made, _SDK, "2.7.0", "protobuf<8", "mlflow<=2.16,>=1.27; extra == 'autologging'")
    for version in ("3.20.3", "5.29.6", "7.36.2"):
        _wheel(made, "protobuf", version)
    _wheel(made, "mlflow", "1.27.0", "protobuf>=3.12.0", *_NEEDED)
    _wheel(made, "mlflow", "2.16.0", "protobuf<6,>=3.12.0")
    for name in _NEEDED:
        _wheel(made, name, "99")
    return made


def _chosen(index: Path, scratch: Path, what: Sequence[str]) -> set[str]:
    installer = Installer(
        scratch / "cache", {"UV_FIND_LINKS": str(index), "UV_NO_INDEX": "1", "PATH": "/usr/bin"}
    )
    # A cache in somebody's project: its settings are not the ones that count.
    (scratch / "pyproject.toml").write_text("[project]\nname = 'a'\nversion = '1'\n")
    lines: list[str] = []
    site = scratch / "environments" / "site"
    site.mkdir(parents=True)
    installer.install(Path(sys.executable), site, ["--dry-run", *what], lines.append)
    installed = lines[-1].replace("+", "").split(",")
    return {"==".join(line.split()) for line in installed}


def test_an_mlflow_that_imports_comes_with_sdk_autologging(index: Path, tmp_path: Path) -> None:
    chosen = _chosen(index, tmp_path, [f"{_SDK}[autologging]==2.7.0"])
    assert chosen == {f"{_SDK}==2.7.0", "mlflow==2.16.0", "protobuf==5.29.6"}
