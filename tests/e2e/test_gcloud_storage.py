"""The real `gcloud storage` against the buckets of a real service (spec/clients#surface,
spec/clients#uploads), and the shell that `trainshed env` makes."""

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
gcloud storage ls 'gs://gcloud-storage/tree/**'
gcloud storage cat gs://gcloud-storage/tree/a.txt 'gs://gcloud-storage/tree/sub/b c#1%.txt'
gcloud ai-platform jobs list --format 'value(jobId)'
gcloud ai custom-jobs list --format 'value(name)'
"$PYTHON" - <<'END'
import os
from google.cloud import storage
print("storage", *(bucket.name for bucket in storage.Client().list_buckets()))
from googleapiclient import discovery
options = {"api_endpoint": os.environ["TRAINSHED_ENDPOINT"]}
ml = discovery.build("ml", "v1", static_discovery=True, client_options=options)
parent = "projects/" + os.environ["GCLOUD_PROJECT"]
print("apiclient", len(ml.projects().jobs().list(parent=parent).execute()))
END
"""


def test_a_shell_that_trainshed_env_made(service: Service, tmp_path: Path) -> None:
    """spec/clients#recipes: after `eval "$(trainshed env)"` the clients need nothing else to find the
    service, and ask nobody else. A tree is stored, listed and read, names that need quoting among them. The
    SDK: test_grpc_clients.py."""
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
    lines = done.stdout.splitlines()
    listed = [f"gs://gcloud-storage/tree/{name}" for name in names]
    assert lines[:5] == [*listed, "alpha", "beta"]
    assert any(line.startswith("apiclient ") for line in lines)
    (stored,) = [line for line in lines if line.startswith("storage ")]
    assert {"gcloud-storage", service.extra["bucket"]} <= set(stored.split())
