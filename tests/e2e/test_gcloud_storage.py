"""The real `gcloud storage` against the buckets of a real service (spec/clients#surface,
spec/clients#uploads), and the shell that `trainshed env` makes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import PROJECT, Service, environment

pytestmark = [pytest.mark.gcloud, needs_gcloud]

BUCKET = "gs://gcloud-storage"


@pytest.fixture(scope="module")
def gcloud(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    return Gcloud(service, tmp_path_factory.mktemp("gcloud"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tree of files, names that need quoting among them."""
    root = tmp_path_factory.mktemp("files")
    (root / "tree" / "sub").mkdir(parents=True)
    (root / "tree" / "a.txt").write_text("alpha\n")
    (root / "tree" / "sub" / "b c#1%.txt").write_text("beta\n")
    (root / "tree" / "empty").touch()
    return root / "tree"


@pytest.fixture(scope="module")
def bucket(gcloud: Gcloud, tree: Path) -> str:
    """A bucket that gcloud made, with the tree in it."""
    gcloud.run("storage", "buckets", "create", BUCKET, "--location", "us-central1")
    gcloud.run("storage", "cp", "-r", str(tree), f"{BUCKET}/")
    return BUCKET


def test_a_bucket_is_described(bucket: str, gcloud: Gcloud) -> None:
    described = gcloud.run(
        *("storage", "buckets", "describe", bucket, "--format", "value(name,location)")
    )
    assert described.stdout.split() == ["gcloud-storage", "US-CENTRAL1"]


def test_a_tree_is_listed_and_read(bucket: str, gcloud: Gcloud) -> None:
    listed = gcloud.run("storage", "ls", f"{bucket}/tree/**").stdout.splitlines()
    names = ["a.txt", "empty", "sub/b c#1%.txt"]
    assert listed == [f"{bucket}/tree/{name}" for name in names]
    read = gcloud.run("storage", "cat", f"{bucket}/tree/a.txt", f"{bucket}/tree/sub/b c#1%.txt")
    assert read.stdout == "alpha\nbeta\n"


def test_the_project_is_described(gcloud: Gcloud) -> None:
    described = gcloud.run(
        *("projects", "describe", PROJECT, "--format", "value(projectId,lifecycleState)")
    )
    assert described.stdout.split() == [PROJECT, "ACTIVE"]


SHELL = """
set -eu
eval "$("$PYTHON" -m trainshed env)"
gcloud storage ls
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
    service, and ask nobody else. The SDK: test_grpc_clients.py."""
    done = subprocess.run(
        ["sh", "-c", SHELL],
        env={
            **environment(service.data),
            "PYTHON": sys.executable,
            "HOME": os.fspath(tmp_path),
            "CLOUDSDK_CONFIG": os.fspath(tmp_path / "gcloud"),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    default = service.extra["bucket"]
    assert f"gs://{default}/" in said
    assert any(line.startswith("apiclient ") for line in said)
    (stored,) = [line for line in said if line.startswith("storage ")]
    assert default in stored.split()
