"""The notebook example, unchanged: dataset, splits, runs from inside and outside, curves, export."""

import sys
from pathlib import Path

import pytest

from tests.commands import execute
from tests.e2e.running import ROOT, Service, env_variables

NOTEBOOK = ROOT / "examples" / "notebook" / "notebook.py"


@pytest.mark.soak
def test_notebook_trains_on_a_table_and_exports_a_model(service: Service, tmp_path: Path) -> None:
    """Three parallel jobs with PyTorch: a minute or two."""
    done = execute(
        sys.executable, str(NOTEBOOK), "churn", env=env_variables(service), cwd=tmp_path, timeout=500
    )
    assert done.returncode == 0, done.stderr[-5000:]
    last = done.stdout.splitlines()[-1]
    assert "is the best; its model is stored in gs://trainshed/churn/handover/model-export-" in last
    bucket, _, prefix = last.rpartition(" ")[2].removeprefix("gs://").partition("/")
    listed = service.call("GET", f"/storage/v1/b/{bucket}/o?prefix={prefix}")["items"]
    assert [model["name"].rpartition("/")[2] for model in listed] == ["model.pt"]
