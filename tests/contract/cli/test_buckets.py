"""`trainshed buckets`: requests to the storage API, and names of local files."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService

OBJECTS = "/storage/v1/b/b/o"
UPLOAD = "/upload/storage/v1/b/b/o"


def object_resource(name: str, size: int = 5) -> dict[str, Any]:
    return {"name": name, "size": str(size), "updated": "2026-11-20T06:00:00.000Z"}


@pytest.fixture
def bucket(service: FakeService) -> FakeService:
    service.on("GET", OBJECTS, {"items": [object_resource("d/a.txt"), object_resource("d/e/b.txt", 3000)]})
    for name in ("d/a.txt", "d/e/b.txt"):
        service.on("GET", f"{OBJECTS}/{name}", name.encode())
        service.on("DELETE", f"{OBJECTS}/{name}", {})
    service.on("POST", UPLOAD, {})
    return service


def test_directory_is_listed_with_its_contents(service: FakeService) -> None:
    service.on("GET", OBJECTS, {"prefixes": ["d/"]}, {"items": [object_resource("d/a.txt", 2048)]})
    result = service.cli("buckets", "ls", "gs://b/d")
    assert result.stdout.splitlines()[1].split()[:3] == ["gs://b/d/a.txt", "2.0", "kB"]
    assert [request.query["prefix"] for request in service.sent] == ["d", "d/"]
    service.on("GET", OBJECTS, {})
    assert "No object exists at gs://b/x." in service.cli("buckets", "ls", "gs://b/x").stderr
    service.on("GET", "/storage/v1/b", {})
    assert service.cli("buckets", "ls", "--project", "q").exit_code == 0
    assert service.sent[-1].query["project"] == "q"


def test_directory_is_uploaded_and_downloaded(trainshed: Invoke, bucket: FakeService, tmp_path: Path) -> None:
    here = tmp_path / "here"
    result = trainshed("buckets", "cp", "-r", "gs://b/d", str(here))
    assert result.exit_code == 0, result.stderr
    assert (here / "e/b.txt").read_text() == "d/e/b.txt"
    assert trainshed("buckets", "cp", "-r", str(here), "gs://b/up").exit_code == 0
    uploads = {a.query["name"]: a.body for a in bucket.sent if a.path == UPLOAD}
    assert uploads == {"up/a.txt": b"d/a.txt", "up/e/b.txt": b"d/e/b.txt"}
    assert trainshed("buckets", "cp", "gs://b/d/a.txt", "-").stdout == "d/a.txt"
    # The service copies between buckets.
    bucket.on("POST", f"{OBJECTS}/d/a.txt/copyTo/b/c/o/x/a.txt", {})
    assert trainshed("buckets", "cp", "gs://b/d/a.txt", "gs://c/x/").exit_code == 0


def test_several_files_are_copied_into_a_directory(
    trainshed: Invoke, bucket: FakeService, tmp_path: Path
) -> None:
    for name in ("one.txt", "two.txt", "sub/three.txt"):
        file = tmp_path / "here" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    here = tmp_path / "here"
    files = (str(here / "one.txt"), str(here / "two.txt"))
    assert trainshed("buckets", "cp", *files, "gs://b/up/").exit_code == 0
    result = trainshed("buckets", "cp", "-r", files[0], str(here / "sub"), "gs://b")
    assert result.exit_code == 0
    assert "2 objects copied" in result.stderr
    uploads = [a.query["name"] for a in bucket.sent if a.path == UPLOAD]
    assert uploads == ["up/one.txt", "up/two.txt", "one.txt", "sub/three.txt"]
    back = tmp_path / "back"
    back.mkdir()
    both = ("gs://b/d/a.txt", "gs://b/d/e/b.txt")
    assert trainshed("buckets", "cp", *both, str(back)).exit_code == 0
    assert sorted(item.name for item in back.iterdir()) == ["a.txt", "b.txt"]
    assert trainshed("buckets", "cp", *both, "-").stdout == "d/a.txtd/e/b.txt"


def test_copy_of_several_files_to_a_single_file_name_is_rejected_before_copying(
    trainshed: Invoke, bucket: FakeService, tmp_path: Path
) -> None:
    file = tmp_path / "one.txt"
    file.write_text("1")
    refused = trainshed("buckets", "cp", str(file), "gs://b/d/a.txt", "gs://b/up")
    assert "If the target is a directory, write gs://b/up/" in refused.stderr
    assert (
        "as gs://BUCKET/NAME" in trainshed("buckets", "cp", "gs://b/d/a.txt", str(file), str(tmp_path)).stderr
    )
    assert "Standard input has no file name" in trainshed("buckets", "cp", "-", "gs://b/up/").stderr
    assert not bucket.sent


def test_object_names_cannot_cause_path_traversal(service: FakeService, tmp_path: Path) -> None:
    service.on("GET", OBJECTS, {"items": [object_resource("d/../../evil")]})
    service.on("GET", f"{OBJECTS}/d/../../evil", b"x")
    result = service.cli("buckets", "cp", "-r", "gs://b/d", str(tmp_path / "here"))
    assert result.exit_code == 1
    assert "cannot be saved below" in result.stderr
    assert not (tmp_path.parent / "evil").exists()


def test_download_does_not_write_through_symlinks_or_into_pipes(
    trainshed: Invoke, bucket: FakeService, tmp_path: Path
) -> None:
    """Writing to a pipe would block forever."""
    (tmp_path / "kept").write_text("mine")
    (tmp_path / "a.txt").symlink_to(tmp_path / "kept")
    assert trainshed("buckets", "cp", "gs://b/d/a.txt", f"{tmp_path}/").exit_code == 0
    assert (tmp_path / "kept").read_text() == "mine"
    assert (tmp_path / "a.txt").read_text() == "d/a.txt"
    below = trainshed("buckets", "cp", "gs://b/d/a.txt", f"{tmp_path}/kept/a.txt")
    assert "kept/a.txt cannot be written: " in below.stderr
    os.mkfifo(tmp_path / "pipe")
    for way in (("-r", str(tmp_path), "gs://b/up"), ("gs://b/d/a.txt", str(tmp_path / "pipe"))):
        assert "pipe is not an ordinary file" in trainshed("buckets", "cp", *way).stderr
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "data").mkdir()
    (tmp_path / "data/linked").symlink_to("/usr")
    left_out = trainshed("buckets", "cp", "-r", str(tmp_path / "data"), "gs://b/up")
    assert "data/linked is not an ordinary file" in left_out.stderr


def test_file_names_have_a_maximum_length_and_are_utf_8(
    trainshed: Invoke, service: FakeService, tmp_path: Path
) -> None:
    name = "n" * 255
    service.on("GET", f"{OBJECTS}/{name}", b"x")
    assert trainshed("buckets", "cp", f"gs://b/{name}", f"{tmp_path}/").exit_code == 0
    assert (tmp_path / name).read_text() == "x"
    (tmp_path / "caf\udce9").touch()
    refused = trainshed("buckets", "cp", f"{tmp_path}/caf\udce9", "gs://b")
    assert (refused.exit_code, "it is not UTF-8" in refused.stderr) == (1, True)


def test_directory_is_deleted_only_with_the_recursive_option(trainshed: Invoke, bucket: FakeService) -> None:
    assert "use -r" in trainshed("buckets", "rm", "gs://b/d/").stderr
    assert trainshed("buckets", "rm", "-r", "gs://b/d").exit_code == 0
    deleted = [request.path for request in bucket.sent if request.method == "DELETE"]
    assert deleted == [f"{OBJECTS}/d/a.txt", f"{OBJECTS}/d/e/b.txt"]
    odd = "d/c\x1b.txt"
    bucket.on("GET", OBJECTS, {"items": [object_resource(odd)]})
    bucket.on("DELETE", f"{OBJECTS}/{odd}", {})
    assert trainshed("buckets", "rm", "-r", "gs://b/d").exit_code == 0
