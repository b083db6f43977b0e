"""Corrects for uv what published packages say wrongly about their requirements. Pure.

A version that a job asks for is never replaced by another one.
"""

import re
from collections.abc import Sequence
from typing import Final

_OLD_PANDAS = (
    "0.20.0 0.20.1 0.20.2 0.20.3 0.21.0 0.21.1 0.22.0 0.23.0 0.23.1 0.23.2 0.23.3 0.23.4 0.24.0 0.24.1 "
    "0.24.2"
)
"""These require `pytz (>=2011k)`, which is no valid version any more, so that uv does not accept it by
itself. Setup scripts of old programs name them often."""
_OLD_PANDAS_NEEDS = ("numpy>=1.12.0", "python-dateutil>=2.5.0", "pytz>=2011.11")

_OLD_MLFLOW = "1.27.0"
"""It sets no upper bound for protobuf, and cannot be imported with protobuf 4 and newer, for which its
messages were not made. It is the oldest version that the extra `autologging` of Google's SDK allows: to keep
the newest protobuf, uv would choose it rather than a newer MLflow with an older protobuf (ADR 26)."""
_OLD_MLFLOW_NEEDS = (
    "alembic",
    "click>=7.0",
    "cloudpickle",
    "databricks-cli>=0.8.7",
    "docker>=4.0.0",
    "entrypoints",
    "flask",
    "gitpython>=2.1.0",
    "gunicorn; platform_system != 'Windows'",
    "importlib-metadata>=3.7.0,!=4.7.0",
    "numpy",
    "packaging",
    "pandas",
    "prometheus-flask-exporter",
    "protobuf>=3.12.0,<4",
    "pytz",
    "pyyaml>=5.1",
    "querystring-parser",
    "requests>=2.17.3",
    "scipy",
    "sqlalchemy>=1.4.0",
    "sqlparse>=0.3.1",
)


def _correction(name: str, version: str, needs: tuple[str, ...]) -> str:
    listed = ", ".join(f'"{need}"' for need in needs)
    return (
        "[[dependency-metadata]]\n"
        f'name = "{name}"\nversion = "{version}"\nrequires-dist = [{listed}]\n'
    )


SETTINGS: Final = "".join(
    _correction(name, version, needs)
    for name, version, needs in (
        *(("pandas", version, _OLD_PANDAS_NEEDS) for version in _OLD_PANDAS.split()),
        ("mlflow", _OLD_MLFLOW, _OLD_MLFLOW_NEEDS),
    )
)
"""The text of a `uv.toml`."""

_AUTOLOGGING = re.compile(
    r"^Requires-Dist: *google[-_.]cloud[-_.]aiplatform *\[[^\]]*autologging",
    re.IGNORECASE | re.MULTILINE,
)
_NAMES_MLFLOW = re.compile(r"^Requires-Dist: *mlflow *(?![-_.\w])", re.IGNORECASE | re.MULTILINE)
_AUTOLOGGED = "mlflow<3"
"""From Python 3.13 on the extra allows any MLflow, and with MLflow 3 it logs nothing and reports no error."""


def also_needed(metadata: Sequence[str]) -> tuple[str, ...]:
    """Return requirements that packages should have in addition to their own. `metadata`: that of their
    wheels."""
    asks = any(map(_AUTOLOGGING.search, metadata)) and not any(map(_NAMES_MLFLOW.search, metadata))
    return (_AUTOLOGGED,) if asks else ()
