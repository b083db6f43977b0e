import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.contract.cli.fake_service import TOKEN, FakeService, Invoke, serving
from trainshed.cli.commands import Group, register
from trainshed.cli.text.moments import parse_moment
from trainshed.replica.protocol import process_start

NOW = parse_moment("2026-11-20T06:01:00Z")


@pytest.fixture
def service(tmp_path: Path, trainshed: Invoke) -> Iterator[FakeService]:
    """A fake service that commands find through the test's data directory."""
    with serving(FakeService(trainshed)) as fake:
        write_service_file(tmp_path, fake.address)
        yield fake


def write_service_file(data: Path, address: str, /, **more: Any) -> None:
    pid = more.get("pid", os.getpid())
    result = {
        "rest": address,
        "storage": address,
        "token": TOKEN,
        "pid": pid,
        "since": str(process_start(pid)),
        "project": "p",
        "region": "us-central1",
        "bucket": "b",
        "buckets": str(data / "buckets"),
    }
    (data / "service.json").write_text(json.dumps(result | more))


@pytest.fixture
def trainshed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """A function that runs a command line with the test's data directory and a fixed clock."""
    for name in (
        "TRAINSHED_ENDPOINT",
        "TRAINSHED_TOKEN",
        "GOOGLE_CLOUD_PROJECT",
        "GCLOUD_PROJECT",
        "NO_COLOR",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINSHED_DATA", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")
    group = Group("trainshed")
    register(group, lambda: NOW)

    def invoke(*arguments: str, **options: Any) -> Result:
        return CliRunner().invoke(group, arguments, prog_name="trainshed", **options)

    return invoke
