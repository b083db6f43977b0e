"""Lists and watches over an API in memory: pages, resumed versions, bookmarks, expiry (410), rotated tokens,
and rejected calls."""

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
from trainshed_cluster.kubernetes import watches
from trainshed_cluster.kubernetes.client import ApiClient, ApiFailure
from trainshed_cluster.kubernetes.objects import Pod
from trainshed_cluster.kubernetes.settings import parse
from trainshed_cluster.kubernetes.watches import WatchedCollection
from trainshed_cluster.remote.cluster import ClusterUnavailable

pytestmark = pytest.mark.anyio

PODS = "/api/v1/pods"


def pod(name: str, version: int, phase: str = "Pending") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "default", "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"containers": []}, "status": {"phase": phase}}


@dataclass
class Api:
    """Returns scripted responses: the `lists` in order, and the `watches`. Records the queries."""

    lists: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    watches: list[list[dict[str, Any]]] = field(default_factory=list[list[dict[str, Any]]])
    token: str = "one"
    queries: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    #: Set when a watch is requested after the last scripted one.
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
        # Chunks do not end at line breaks.
        yield lines[:7]
        yield lines[7:]

    @staticmethod
    def refusal(code: int, reason: str) -> httpx2.Response:
        return httpx2.Response(code, json={"code": code, "reason": reason, "message": "no"})


def list_page(version: int, *items: dict[str, Any], more: str = "") -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version), "continue": more}, "items": items}


def watch_event(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": item}


@pytest.fixture
def client_of(tmp_path: Path) -> Callable[[Callable[..., Any]], ApiClient]:
    token = tmp_path / "token"
    token.write_text("one")
    config = kubeconfig.write(tmp_path, tokenFile=str(token))
    # The clusters of Rancher are served below a path.
    config.write_text(config.read_text().replace("api.invalid", "api.invalid/k8s"))
    settings = parse({"image": "i:1", "kubeconfig": str(config)})
    return lambda answer: ApiClient(settings, httpx2.MockTransport(answer))


async def follow_script(api: Api, client: ApiClient) -> tuple[dict[str, str], list[tuple[str, bool]]]:
    """Return the known Pods (phase by name) at the end of the script, and all changes: (name, is gone)."""
    changes: list[tuple[str, bool]] = []

    def tell(changed: Pod, /, *, gone: bool) -> None:
        changes.append((changed.metadata.name, gone))

    pods = WatchedCollection(client, PODS, Pod, tell)
    await pods.list()
    following = asyncio.create_task(pods.follow())
    async with asyncio.timeout(60):
        await api.idle.wait()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await client.close()
    return {changed.metadata.name: changed.status.phase for changed in pods.objects.values()}, changes


async def test_pod_list_reads_all_pages_and_the_pod_watch_resumes_after_its_end(client_of: Any) -> None:
    changes = [watch_event("MODIFIED", pod("a", 6, "Running")), watch_event("DELETED", pod("b", 7))]
    mark = {"metadata": {"resourceVersion": "20"}, "spec": {"containers": None}}
    lists = [list_page(5, pod("a", 1), more="next"), list_page(5, pod("b", 2))]
    api = Api(lists, [changes, [watch_event("BOOKMARK", mark)]])
    known, changes = await follow_script(api, client_of(api.answer))
    assert known == {"a": "Running"}
    assert changes == [("a", False), ("b", False), ("a", False), ("b", True)]
    assert api.queries[1]["continue"] == "next"
    watches = [query["resourceVersion"] for query in api.queries if "watch" in query]
    assert watches == ["5", "7", "20"]


async def test_expired_watch_restarts_with_a_new_list(client_of: Any) -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    api = Api(
        [list_page(5, pod("a", 1), pod("b", 2)), list_page(90, pod("b", 80, "Running"), pod("c", 81))],
        [[gone]],
    )
    known, changes = await follow_script(api, client_of(api.answer))
    assert known == {"b": "Running", "c": "Pending"}
    assert changes[2:] == [("a", True), ("b", False), ("c", False)], "unlisted Pods are gone"
    assert api.queries[-1]["resourceVersion"] == "90"


async def test_short_watches_are_restarted_with_growing_delays(
    client_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that has lost its server responds like this."""
    monkeypatch.setattr(watches, "_MIN_RETRY_INTERVAL", 0.02)
    begun = asyncio.get_running_loop().time()
    api = Api([list_page(5)], [[], [], []])
    await follow_script(api, client_of(api.answer))
    assert round(asyncio.get_running_loop().time() - begun, 3) >= 0.02 + 0.04 + 0.08


@dataclass
class TwoNamespaces:
    """The rights are limited to Pods of two namespaces. The second one does not respond while `shut` is
    set."""

    is_unavailable: bool = True

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        if path == PODS:
            return Api.refusal(403, "Forbidden")
        if "watch" in request.url.params:
            await asyncio.Event().wait()
        if self.is_unavailable and path.endswith("/b/pods"):
            return Api.refusal(503, "ServiceUnavailable")
        theirs = pod("theirs", 1)
        requests = {"resources": {"requests": {"cpu": "2"}}}
        theirs["spec"] = {"nodeName": "n", "containers": [requests]}
        node = {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "8"}}}
        items = {"/api/v1/nodes": [node], "/api/v1/namespaces/a/pods": [theirs]}
        return httpx2.Response(200, json=list_page(1, *items.get(path, [])))


async def test_repeated_start_of_the_cluster_connection_counts_each_pod_once(make: Make) -> None:
    """The start is repeated until the whole API responds (`RetryingCluster`)."""
    here = make(api := TwoNamespaces(), namespaces={"one": "a", "two": "b"})
    with pytest.raises(ClusterUnavailable):
        await here.start()
    api.is_unavailable = False
    await here.start()
    assert [report.node.others.vcpus for report in here.report().nodes] == [2.0]


@pytest.mark.parametrize("status", [401, 429])
async def test_temporary_api_error_at_the_start_raises_a_retryable_error(make: Make, status: int) -> None:
    with pytest.raises(ClusterUnavailable, match=str(status)):
        await make(Mock(answer=Mock(return_value=httpx2.Response(status)))).start()


async def test_changed_token_file_is_read_again_before_the_next_request(
    client_of: Any, tmp_path: Path
) -> None:
    api = Api([list_page(1), list_page(2)])
    client = client_of(api.answer)
    await client.list(PODS, Pod)
    (tmp_path / "token").write_text("two")
    api.token = "two"
    assert (await client.list(PODS, Pod))[1] == "2"
    await client.close()


async def test_invalid_kubernetes_credentials_cause_only_a_temporary_failure(
    client_of: Any, tmp_path: Path
) -> None:
    """An external process renews them, and jobs do not fail in the meantime."""
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


async def test_rejected_request_fails_permanently_but_an_unreachable_server_only_temporarily(
    client_of: Any,
) -> None:
    def silent(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    with pytest.raises(ApiFailure) as caught:
        await client_of(Mock(return_value=Api.refusal(403, "Forbidden"))).list(PODS, Pod)
    assert caught.value.status == 403 and caught.value.is_final
    for answer in (Mock(return_value=Api.refusal(503, "ServiceUnavailable")), silent):
        with pytest.raises(ClusterUnavailable):
            await client_of(answer).list(PODS, Pod)


async def test_error_shows_the_request_if_the_api_server_returns_no_reason(client_of: Any) -> None:
    """For example, the kubelet does not have this container. The API forwards only its status."""
    path, client = f"{PODS}/one", client_of(Mock(return_value=httpx2.Response(404)))
    attaching = client.attach(path, "replica", b"", b"taken")
    for call, target in ((client.get(path, Pod), path), (attaching, f"{path}/attach")):
        with pytest.raises(ApiFailure, match=rf"its answer to GET /k8s{target} \(404 Not Found\)"):
            await call
