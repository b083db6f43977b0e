"""The real `gcloud storage` against the buckets of a real service (spec/clients#surface,
spec/clients#uploads), and the shell that `trainshed env` makes."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.gcloud import Gcloud, needs_gcloud
from tests.e2e.running import PROJECT, Service, environment

pytestmark = [pytest.mark.gcloud, needs_gcloud]

BUCKET = "gs://gcloud-storage"
BIG = 20 * 2**20


@pytest.fixture(scope="module")
def gcloud(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Gcloud:
    return Gcloud(service, tmp_path_factory.mktemp("gcloud"))


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tree of files, names that need quoting among them, and one large file beside it."""
    root = tmp_path_factory.mktemp("files")
    (root / "tree" / "sub").mkdir(parents=True)
    (root / "tree" / "a.txt").write_text("alpha\n")
    (root / "tree" / "sub" / "b c#1%.txt").write_text("beta\n")
    (root / "tree" / "empty").touch()
    with (root / "big").open("wb") as file:
        for number in range(BIG // 2**20):
            file.write(hashlib.sha256(b"%d" % number).digest() * (2**20 // 32))
    return root


@pytest.fixture(scope="module")
def bucket(gcloud: Gcloud, tree: Path) -> str:
    """A bucket that gcloud made, with the tree in it."""
    gcloud.run("storage", "buckets", "create", BUCKET, "--location", "us-central1")
    gcloud.run("storage", "cp", "-r", str(tree / "tree"), f"{BUCKET}/")
    return BUCKET


def test_a_bucket_is_described(bucket: str, gcloud: Gcloud) -> None:
    described = gcloud.run(
        *("storage", "buckets", "describe", bucket, "--format", "value(name,location)")
    )
    assert described.stdout.split() == ["gcloud-storage", "US-CENTRAL1"]


@pytest.mark.soak  # For all clients: tests/unit/test_buckets_http.py.
def test_a_bucket_is_made_once(bucket: str, gcloud: Gcloud) -> None:
    again = gcloud.run("storage", "buckets", "create", bucket, fails=True)
    assert "409" in again.stderr


def test_a_tree_is_listed_and_read(bucket: str, gcloud: Gcloud) -> None:
    listed = gcloud.run("storage", "ls", f"{bucket}/tree/**").stdout.splitlines()
    names = ["a.txt", "empty", "sub/b c#1%.txt"]
    assert listed == [f"{bucket}/tree/{name}" for name in names]
    read = gcloud.run("storage", "cat", f"{bucket}/tree/a.txt", f"{bucket}/tree/sub/b c#1%.txt")
    assert read.stdout == "alpha\nbeta\n"


@pytest.mark.soak  # For all clients: tests/unit/test_buckets_objects.py.
def test_a_tree_is_listed_by_directory_and_weighed(bucket: str, gcloud: Gcloud) -> None:
    assert gcloud.run("storage", "ls", f"{bucket}/tree/").stdout.splitlines() == [
        f"{bucket}/tree/a.txt",
        f"{bucket}/tree/empty",
        f"{bucket}/tree/sub/",
    ]
    weighed = gcloud.run("storage", "du", "-s", bucket).stdout.split()
    assert weighed == [str(len("alpha\nbeta\n")), bucket]


@pytest.mark.soak  # By other clients: tests/contract/test_buckets_clients.py.
def test_a_large_file_goes_and_comes_back(bucket: str, gcloud: Gcloud, tree: Path) -> None:
    """A resumable upload below /resumable/upload, and a download whose checksum gcloud verifies."""
    gcloud.run("storage", "cp", str(tree / "big"), f"{bucket}/big")
    gcloud.run("storage", "cp", f"{bucket}/big", str(tree / "back"))
    assert (tree / "back").read_bytes() == (tree / "big").read_bytes()


@pytest.mark.soak  # For all clients: tests/unit/test_buckets_copies.py.
def test_objects_move_and_directories_sync(bucket: str, gcloud: Gcloud, tree: Path) -> None:
    gcloud.run("storage", "rsync", "-r", str(tree / "tree"), f"{bucket}/synced")
    gcloud.run("storage", "mv", f"{bucket}/synced/a.txt", f"{bucket}/synced/moved.txt")
    target = tree / "synced"
    target.mkdir()
    (target / "old").touch()
    gcloud.run(
        *("storage", "rsync", "-r", "--delete-unmatched-destination-objects"),
        *(f"{bucket}/synced", str(target)),
    )
    files = sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
    assert files == ["empty", "moved.txt", "sub/b c#1%.txt"]
    assert (target / "moved.txt").read_text() == "alpha\n"


@pytest.mark.soak  # Answers to all clients: tests/contract/test_buckets_clients.py.
def test_what_is_not_there(bucket: str, gcloud: Gcloud) -> None:
    missing = gcloud.run("storage", "rm", f"{bucket}/nothing", fails=True)
    assert "matched no objects" in missing.stderr
    unknown = gcloud.run("storage", "cat", "gs://no-such-bucket/x", fails=True)
    assert "404" in unknown.stderr


@pytest.mark.soak  # For all clients: tests/unit/test_buckets_objects.py.
def test_a_bucket_goes_only_when_it_is_empty(gcloud: Gcloud, tree: Path) -> None:
    gcloud.run("storage", "buckets", "create", "gs://gcloud-gone")
    gcloud.run("storage", "cp", str(tree / "tree" / "a.txt"), "gs://gcloud-gone/a/b/c.txt")
    refused = gcloud.run("storage", "buckets", "delete", "gs://gcloud-gone", fails=True)
    assert "not empty" in refused.stderr
    gcloud.run("storage", "rm", "-r", "gs://gcloud-gone")
    listed = gcloud.run("storage", "buckets", "list", "--format", "value(name)").stdout.split()
    assert "gcloud-gone" not in listed


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
