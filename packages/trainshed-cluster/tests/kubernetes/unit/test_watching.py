"""Lists and watches over an API in memory: pages, versions that are gone on from, bookmarks, expiry (410),
tokens that are exchanged, and what a call makes of refusals."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from tests.kubernetes.unit import kubeconfig
from tests.kubernetes.unit.conftest import Make
from trainshed_cluster.kubernetes import client
from trainshed_cluster.kubernetes.client import ApiClient, ApiFailure, Followed
from trainshed_cluster.kubernetes.objects import Pod
from trainshed_cluster.kubernetes.settings import parse
from trainshed_cluster.remote.cluster import ClusterUnavailable

pytestmark = pytest.mark.anyio

PODS = "/api/v1/pods"


def pod(name: str, version: int, phase: str = "Pending") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": phase}}


@dataclass
class Api:
    """Answers by script: `lists` one after the other, then `watches`; what is asked is noted."""

    lists: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    watches: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    token: str = "one"
    queries: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    #: Set when a watch is asked for that the script does not have.
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return self.refusal(401, "Unauthorized")
        params = dict(request.url.params)
        self.queries.append(params)
        if "watch" not in params:
            return httpx2.Response(200, json=self.lists.pop(0))
        return httpx2.Response(200, content=self.events())

    async def events(self) -> AsyncIterator[bytes]:
        if not self.watches:
            self.idle.set()
            await asyncio.Event().wait()
        lines = b"".join(json.dumps(event).encode() + b"\n" for event in self.watches.pop(0))
        # Pieces know nothing of lines.
        yield lines[:7]
        yield lines[7:]

    @staticmethod
    def refusal(code: int, reason: str) -> httpx2.Response:
        return httpx2.Response(code, json={"code": code, "reason": reason, "message": "no"})


def listed(version: int, *items: dict[str, Any], more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": items}


def changed(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": item}


@pytest.fixture
def client_of(tmp_path: Path) -> Callable[[Callable[..., Any]], ApiClient]:
    token = tmp_path / "token"
    token.write_text("one")
    config = kubeconfig.written(tmp_path, tokenFile=str(token))
    # As Rancher's, whose clusters lie below a path.
    config.write_text(config.read_text().replace("api.invalid", "api.invalid/k8s"))
    settings = parse({"image": "i:1", "kubeconfig": str(config)})
    return lambda answer: ApiClient(settings, httpx2.MockTransport(answer))


async def followed(api: Api, client: ApiClient) -> tuple[dict[str, str], list[tuple[str, bool]]]:
    """What is known, by name, when the script is over, and what was told on the way."""
    heard: list[tuple[str, bool]] = []

    def tell(changed: Pod, /, *, gone: bool) -> None:
        heard.append((changed.metadata.name, gone))

    pods = Followed(client, PODS, Pod, tell)
    await pods.list()
    following = asyncio.create_task(pods.follow())
    async with asyncio.timeout(60):
        await api.idle.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await client.close()
    return {changed.metadata.name: changed.status.phase for changed in pods.objects.values()}, heard


async def test_a_list_comes_in_pages_and_a_watch_goes_on_where_it_was(client_of: Any) -> None:
    changes = [changed("MODIFIED", pod("a", 6, "Running")), changed("DELETED", pod("b", 7))]
    mark = {"metadata": {"resourceVersion": "20"}, "spec": {"containers": None}}
    lists = [listed(5, pod("a", 1), more="next"), listed(5, pod("b", 2))]
    api = Api(lists, [changes, [changed("BOOKMARK", mark)]])
    known, heard = await followed(api, client_of(api.answer))
    assert known == {"a": "Running"}
    assert heard == [("a", False), ("b", False), ("a", False), ("b", True)]
    assert api.queries[1]["continue"] == "next"
    watches = [query["resourceVersion"] for query in api.queries if "watch" in query]
    assert watches == ["5", "7", "20"]


async def test_what_a_watch_has_missed_for_too_long_is_listed_again(client_of: Any) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    api = Api(
        [listed(5, pod("a", 1), pod("b", 2)), listed(90, pod("b", 80, "Running"), pod("c", 81))],
        [[gone]],
    )
    known, heard = await followed(api, client_of(api.answer))
    assert known == {"b": "Running", "c": "Pending"}
    assert heard[2:] == [("a", True), ("b", False), ("c", False)], "what is not listed is gone"
    assert api.queries[-1]["resourceVersion"] == "90"


async def test_watches_that_end_at_once_are_begun_again_more_and_more_seldom(
    client_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a proxy that has lost its server."""
    monkeypatch.setattr(client, "_FIRST_PAUSE", 0.02)
    begun = asyncio.get_running_loop().time()
    api = Api([listed(5)], [[], [], []])
    await followed(api, client_of(api.answer))
    assert round(asyncio.get_running_loop().time() - begun, 3) >= 0.02 + 0.04 + 0.08


@dataclass
class Shut:
    """Of two namespaces, whose Pods alone may be seen, the second does not answer while it is `shut`."""

    shut: bool = True

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path == PODS:
            return Api.refusal(403, "Forbidden")
        if "watch" in request.url.params:
            await asyncio.Event().wait()
        if self.shut and path.endswith("/b/pods"):
            return Api.refusal(503, "ServiceUnavailable")
        theirs = pod("theirs", 1)
        requests = {"resources": {"requests": {"cpu": "2"}}}
        theirs["spec"] = {"nodeName": "n", "containers": [requests]}
        node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8"}}}
        items = {"/api/v1/nodes": [node], "/api/v1/namespaces/a/pods": [theirs]}
        return httpx2.Response(200, json=listed(1, *items.get(path, [])))


async def test_what_a_start_has_seen_that_failed_counts_once(make: Make) -> None:
    """It is tried until the whole API answers (`AwaitedCluster`)."""
    here = make(api := Shut(), namespaces={"one": "a", "two": "b"})
    with pytest.raises(ClusterUnavailable):
        await here.start()
    api.shut = False
    await here.start()
    assert [report.node.others.vcpus for report in here.report().nodes] == [2.0]


@pytest.mark.parametrize("status", [401, 429])
async def test_a_start_that_may_succeed_later_is_tried_again(make: Make, status: int) -> None:
    with pytest.raises(ClusterUnavailable, match=str(status)):
        await make(Mock(answer=Mock(return_value=httpx2.Response(status)))).start()


async def test_a_token_that_was_exchanged_is_read_again(client_of: Any, tmp_path: Path) -> None:
    api = Api([listed(1), listed(2)])
    client = client_of(api.answer)
    await client.list(PODS, Pod)
    (tmp_path / "token").write_text("two")
    api.token = "two"
    assert (await client.list(PODS, Pod))[1] == "2"
    await client.close()


async def test_credentials_that_do_not_hold_just_now_are_waited_for(
    client_of: Any, tmp_path: Path
) -> None:
    """They are renewed by others, and no job fails for that."""
    client = client_of(Api(token="another").answer)
    with pytest.raises(ApiFailure) as caught:
        await client.list(PODS, Pod)
    assert caught.value.status == 401 and not caught.value.is_final
    (tmp_path / "token").unlink()
    for asking in (
        client.list(PODS, Pod),
        anext(client.watch(PODS, "1")),
        client.attach(f"{PODS}/one", "replica", b"", b"taken"),
    ):
        with pytest.raises(ClusterUnavailable, match="token"):
            await asking
    await client.close()


async def test_a_refusal_is_told_apart_from_silence(client_of: Any) -> None:
    def silent(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(ApiFailure) as caught:
        await client_of(Mock(return_value=Api.refusal(403, "Forbidden"))).list(PODS, Pod)
    assert caught.value.status == 403 and caught.value.is_final
    for answer in (Mock(return_value=Api.refusal(503, "ServiceUnavailable")), silent):
        with pytest.raises(ClusterUnavailable):
            await client_of(answer).list(PODS, Pod)


async def test_an_answer_without_a_reason_is_told_by_what_was_asked(client_of: Any) -> None:
    """As by a kubelet that has no such container, of which the API only passes on the status."""
    path, client = f"{PODS}/one", client_of(Mock(return_value=httpx2.Response(404)))
    attaching = client.attach(path, "replica", b"", b"taken")
    for call, target in ((client.get(path, Pod), path), (attaching, f"{path}/attach")):
        with pytest.raises(ApiFailure, match=rf"its answer to GET /k8s{target} \(404 Not Found\)"):
            await call
