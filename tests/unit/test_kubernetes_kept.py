"""A Pod that goes on with another job's replica, over an API in memory: whoever looks at it sees whose it
is."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace

from tests.unit.test_kubernetes_giving_back import NAME, Api, started
from trainshed.core.names import JobUid
from trainshed.engines.kubernetes.build import keep_seconds
from trainshed.engines.kubernetes.settings import parse
from trainshed.engines.remote.cluster import NodeNeed

pytestmark = pytest.mark.anyio

NEED = NodeNeed(
    "a",
    1,
    1.0,
    1 << 30,
    replica="workerpool0-0",
    hostname="of-eight",
    job_uid=JobUid(8),
    attempt=2,
)


class Patched(Api):
    """`refuses`: what its rights do not let the service do."""

    def __init__(self, *, refuses: bool = False) -> None:
        super().__init__()
        self.refuses = refuses
        self.patches: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "PATCH":
            return await super().answer(request)
        assert request.headers["content-type"] == "application/merge-patch+json"
        assert request.url.path.endswith("/namespaces/default/pods/one")
        self.patches.put_nowait(json.loads(request.content))
        if self.refuses:
            return httpx2.Response(403, json={"code": 403, "message": "no patch"})
        return httpx2.Response(200, json={})


@pytest.mark.parametrize("refuses", [False, True])
async def test_labels_say_whose_it_is_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    api = Patched(refuses=refuses)
    here = await started(api, tmp_path, monkeypatch)
    here.adopted(NAME, [NEED])
    async with asyncio.timeout(10):
        metadata = (await api.patches.get())["metadata"]
        await here.close()
    assert metadata["uid"] == "one", "another Pod of that name is left as it is"
    assert metadata["labels"] == {
        "app.kubernetes.io/component": "workerpool0",
        "app.kubernetes.io/instance": "job-8",
        "trainshed/job": "8",
        "trainshed/attempt": "2",
        "trainshed/replica": "workerpool0-0",
    }
    assert metadata["annotations"] == {"trainshed/hostname": "of-eight"}


@pytest.mark.parametrize(
    ("table", "seconds"),
    [
        ({}, 30.0),
        ({"keep": 0}, 0.0),
        ({"pod_groups": True}, None),
        ({"queue": "kueue", "local_queue": "q"}, None),
    ],
)
def test_what_others_count_is_not_kept(table: dict[str, Any], seconds: float | None) -> None:
    assert keep_seconds(parse({"image": "i:1", **table})) == seconds


def test_replicas_of_a_kind_are_told_from_others() -> None:
    assert replace(NEED, replica="workerpool0-1", hostname="b", job_uid=JobUid(9)).kind == NEED.kind
    for other in ({"project": "p"}, {"service_account": "s"}, {"image": "i"}, {"gang_size": 2}):
        assert replace(NEED, **other).kind != NEED.kind
    assert replace(NEED, gang_size=2).kind == replace(NEED, gang_size=16).kind
