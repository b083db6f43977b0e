"""The emulator's use of plan and capture files (docs/emulator.md). Clients and processes are tested
in `tests/e2e/test_emulate.py`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.commands import disk_of, fill
from tests.contract.api.api_service import LOCATION, ApiService
from tests.unit.specs_requests import ReducingRuntimes, custom_job, vertex
from trainshed.core.errors import FailedPrecondition
from trainshed.serve.emulation import Emulation


def emulate(service: ApiService, *rules: dict[str, Any], capture: Path | None = None) -> None:
    """Serve like an emulator with a plan of these rules."""
    plan = service.log_root.with_name("plan.json")
    plan.write_text(json.dumps(rules))
    service.serve(runtimes=ReducingRuntimes())
    service.services = Emulation(plan, capture).around(service.services)
    service.app = service.application()


async def test_captured_api_request_is_written_in_rest_form(service: ApiService, tmp_path: Path) -> None:
    emulate(service, {"job": "never"}, capture=tmp_path / "sent.jsonl")
    await service.result("GET", f"{LOCATION}/customJobs?page_size=9")
    names = {"resourceNames": ["projects/p1"]}
    await service.result("POST", "/v2/entries:list", names)
    sent, log_read = map(json.loads, (tmp_path / "sent.jsonl").read_text().splitlines())
    path = f"{LOCATION}/customJobs"
    assert sent == {"method": "GET", "path": path, "query": {"pageSize": 9}, "body": {}}
    assert log_read["body"] == names


async def test_api_request_is_rejected_if_it_cannot_be_captured(service: ApiService, tmp_path: Path) -> None:
    with disk_of("size=64k", tmp_path / "disk") as disk:
        capture = disk / "sent.jsonl"
        emulate(service, {"job": "*"}, capture=capture)
        # The disk block with the end of the file has space for a partial line.
        capture.write_text("x" * 4000 + "\n")
        filler = fill(disk)
        answer = await service.call("POST", f"{LOCATION}/customJobs", custom_job())
        filler.unlink()
        await service.result("GET", f"{LOCATION}/customJobs")
        _, line = capture.read_text().splitlines()
        assert json.loads(line)["method"] == "GET"
    assert (answer.status, answer.error["status"]) == (400, "FAILED_PRECONDITION")
    assert f"--capture {capture} cannot be written: No space left on device." in answer.error["message"]
    assert service.woken == []


def test_invalid_emulation_plan_is_rejected_at_the_start_of_the_emulator(service: ApiService) -> None:
    with pytest.raises(FailedPrecondition) as refusal:
        emulate(service, {"job": "a", "exit_code": 1000})
    assert "`int` <= 255 - at `$[0].exit_code`" in str(refusal.value)
    assert 'such as [{"job": "train-*", "exit_code": 1}]' in str(refusal.value)


def test_emulated_trial_reports_0_for_metrics_that_its_plan_does_not_contain(service: ApiService) -> None:
    emulate(service, {"job": "a", "metrics": {"accuracy": 0.5}})
    assert service.services.replace_spec is not None
    spec = service.services.replace_spec("a", vertex(custom_job()), ("accuracy", "loss"))
    rule = json.loads(spec.pools[0].program.command[-1])
    assert rule["metrics"] == {"accuracy": 0.5, "loss": 0}
