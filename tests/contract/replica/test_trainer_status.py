"""Kubeflow Trainer's status protocol at a replica's endpoint: what is taken, and what is refused
(spec/program#progress)."""

import json
from pathlib import Path
from typing import Any

import pytest

from trainshed.replica.endpoint import conversation, messages, trainer_status

TOKEN = "a-token"
PATH = trainer_status.path("p1", "17")
HEAD = messages.Head(
    b"POST %b HTTP/1.1" % PATH.encode(), [b"Host: h", b"Authorization: Bearer " + TOKEN.encode()]
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def answered(status: trainer_status.TrainerStatus, body: object, head: messages.Head = HEAD) -> Any:
    """(code, JSON) of the answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    first, _, rest = status.answer(head, data).partition(b"\r\n")
    return int(first.split()[1]), json.loads(rest.partition(b"\r\n\r\n")[2])


def written(logs: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (logs / trainer_status.FILE).read_text().splitlines()]


def test_a_report_is_taken_down_without_secrets(tmp_path: Path) -> None:
    status = trainer_status.TrainerStatus(TOKEN, str(tmp_path), 2, ["hunter2-hunter2"])
    said = {
        "progressPercentage": 45,
        "estimatedRemainingSeconds": 600,
        "metrics": [{"name": "loss", "value": "0.2"}, {"name": "key", "value": "hunter2-hunter2"}],
        "lastUpdatedTime": "2026-11-22T05:00:00+00:00",
        "whatComesNext": 1,
    }
    assert answered(status, {"trainerStatus": said})[0] == 200
    assert answered(status, {"trainerStatus": {}})[0] == 200
    first, second = written(tmp_path)
    assert (first["percent"], first["left"], first["incarnation"]) == (45, 600, 2)
    assert first["metrics"] == {"loss": "0.2", "key": "***"}
    assert second.keys() == {"at", "incarnation"}


@pytest.mark.parametrize(
    ("body", "code", "named"),
    [
        (b"{", 400, ["JSON"]),
        (b"[" * 100_000, 400, ["JSON", "nested"]),
        ([], 422, ["trainerStatus"]),
        ({"trainerStatus": 7}, 422, ["trainerStatus"]),
        (
            {
                "trainerStatus": {
                    "progressPercentage": 101,
                    "estimatedRemainingSeconds": "soon",
                    "metrics": [{"name": "", "value": 0.2}, 3],
                    "lastUpdatedTime": 0,
                }
            },
            422,
            [
                "progressPercentage",
                "estimatedRemainingSeconds",
                "metrics[0].name",
                "metrics[0].value",
                "metrics[1].name",
                "lastUpdatedTime",
            ],
        ),
        (
            {"trainerStatus": {"progressPercentage": True, "metrics": 1.5}},
            422,
            ["Percentage", "metrics:"],
        ),
        ({"trainerStatus": {"metrics": [1] * 300}}, 422, ["at most 256"]),
    ],
)
def test_what_is_no_report_is_refused_with_every_fault(
    tmp_path: Path, body: object, code: int, named: list[str]
) -> None:
    status = trainer_status.TrainerStatus(TOKEN, str(tmp_path), 1)
    found, said = answered(status, body)
    assert found == code
    assert any(name in said["error"]["message"] for name in named)
    if code == 422:
        assert [name for name in named if name not in said["error"]["message"]] == []
    assert not (tmp_path / trainer_status.FILE).exists()


@pytest.mark.parametrize(
    ("first", "fields", "code"),
    [
        (b"GET " + PATH.encode(), [b"Authorization: Bearer " + TOKEN.encode()], 405),
        (b"POST /apis/trainer.kubeflow.org/v1alpha1/trainjobs", [], 404),
        (b"POST " + PATH.encode(), [], 401),
        (b"POST " + PATH.encode(), [b"Authorization: Bearer of-another-attempt"], 401),
    ],
)
def test_who_may_report_what(tmp_path: Path, first: bytes, fields: list[bytes], code: int) -> None:
    status = trainer_status.TrainerStatus(TOKEN, str(tmp_path), 1)
    found, said = answered(
        status, {"trainerStatus": {}}, messages.Head(first + b" HTTP/1.1", fields)
    )
    assert (found, said["error"]["code"]) == (code, code)


def test_who_reports_all_the_time_is_slowed_down(tmp_path: Path) -> None:
    clock = Clock()
    status = trainer_status.TrainerStatus(TOKEN, str(tmp_path), 1, clock=clock)
    codes = [answered(status, {"trainerStatus": {}})[0] for _ in range(12)]
    assert codes == [200] * 10 + [429] * 2
    clock.now += 1
    assert [answered(status, {"trainerStatus": {}})[0] for _ in range(3)] == [200, 200, 429]


def test_a_disk_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    status = trainer_status.TrainerStatus(TOKEN, str(tmp_path / "missing"), 1)
    assert answered(status, {"trainerStatus": {}})[0] == 503


def test_the_host_is_none_of_googles() -> None:
    request = conversation.Request(
        messages.Head(b"POST / HTTP/1.1", [b"Host: " + trainer_status.HOST.encode()])
    )
    assert not request.is_api
    assert not request.may_go_out()
