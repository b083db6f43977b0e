"""The real `gcloud storage` with the buckets of a real service (spec/clients#surface, spec/clients#uploads),
in a shell of `trainshed env`.
"""

import os
import sys
from pathlib import Path

import pytest

from tests.commands import execute
from tests.e2e.gcloud import ALONE, needs_gcloud
from tests.e2e.running import Service, environment

pytestmark = [pytest.mark.gcloud, needs_gcloud]


SHELL = """
set -eu
eval "$("$PYTHON" -m trainshed env)"
gcloud storage buckets create gs://gcloud-storage --location us-central1
gcloud storage cp -r tree gs://gcloud-storage/
gcloud storage cat --display-url 'gs://gcloud-storage/tree/**'
"""


def test_storage_clients_can_access_buckets_with_the_variables_of_trainshed_env(
    service: Service, tmp_path: Path
) -> None:
    """spec/clients#recipes: after `eval "$(trainshed env)"` the clients find the service without more
    settings, and contact no other server. A tree is stored, listed and read, including names that need
    quoting. tests/docs tests gcloud's other commands (docs/clients.md#gcloud), test_grpc_clients.py the SDK.
    """
    names = {"a.txt": "alpha\n", "empty": "", "sub/b c#1%.txt": "beta\n"}
    for name, text in names.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    done = execute(
        "sh",
        "-c",
        SHELL,
        env={
            **environment(service.data),
            "PYTHON": sys.executable,
            "HOME": os.fspath(tmp_path),
            "CLOUDSDK_CONFIG": os.fspath(tmp_path / "gcloud"),
            **ALONE,
        },
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "alpha\nbeta\n"
    shown = [line for line in done.stderr.splitlines() if line.startswith("==> ")]
    assert shown == [f"==> gs://gcloud-storage/tree/{name} <==" for name in names]
