"""`trainshed status`."""

import json
from pathlib import Path

from tests.contract.cli.conftest import Invoke
from tests.contract.cli.fake_service import FakeService, job

STATUS = {
    "version": "1.2",
    "startTime": "2026-11-20T06:00:00.000000Z",
    "principal": "owner@p",
    "project": "p",
    "region": "r",
    "bucket": "b",
}


def test_the_service_at_a_glance(trainshed: Invoke, service: FakeService, tmp_path: Path) -> None:
    service.on("GET", "/trainshed/v1/status", STATUS)
    service.on("GET", "/trainshed/v1/jobs", {"jobs": [job("7")], "nextPageToken": ""})
    result = trainshed("status")
    assert result.exit_code == 0, result.stderr
    facts = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert facts["Service"] == f"{service.address}  trainshed 1.2"
    assert facts["Up"].startswith("1m 00s, since")
    assert facts["Data"] == str(tmp_path)
    assert json.loads(trainshed("status", "--format", "json").stdout)["url"] == service.address
