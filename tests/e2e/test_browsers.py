"""Attacks by another site's page in a browser of this machine: CSRF, DNS rebinding, cross-site WebSockets."""

import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from tests.e2e.running import CUSTOM_JOBS, Service, start

EVIL = "http://evil.example"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAINSHED_ALLOWED_HOSTS", "training.example.org")
        patch.setenv("TRAINSHED_WEB_URL", "https://console.example.org")
        started = start(tmp_path_factory.mktemp("browsers") / "data")
    yield started
    started.terminate()


@pytest.mark.parametrize(
    ("place", "path"), [("rest", "/trainshed/v1/status"), ("storage", "/storage/v1/b?project=trainshed")]
)
def test_dns_rebinding_is_rejected(service: Service, place: str, path: str) -> None:
    evil = {"Host": "rebound.evil.example:8080"}
    refusal = service.ask("GET", path, place=place, headers=evil)
    assert refusal.status == 421
    assert 'TRAINSHED_ALLOWED_HOSTS="rebound.evil.example"' in refusal.message
    for host in ("localhost:1", "training.example.org", "ml.googleapis.com", "127.0.0.1"):
        assert service.ask("GET", path, place=place, headers={"Host": host}).status == 200


@pytest.mark.parametrize("verb", ["POST", "DELETE", "PUT", "PATCH"])
@pytest.mark.parametrize("place", ["rest", "storage"])
@pytest.mark.parametrize("origin", [EVIL, "null"])
def test_csrf_from_a_foreign_page_is_rejected(service: Service, place: str, verb: str, origin: str) -> None:
    path = f"{CUSTOM_JOBS}/1" if place == "rest" else "/storage/v1/b/trainshed/o/x"
    refusal = service.ask(verb, path, place=place, headers={"Origin": origin})
    assert refusal.status == 403
    assert "web_url" in refusal.message
    for own in (str(service.extra[place]), "https://console.example.org"):
        answer = service.ask(verb, path, place=place, headers={"Origin": own})
        assert b"web_url" not in answer.body


def test_cross_site_websocket_is_rejected(service: Service) -> None:
    door = f"{service.rest.replace('http', 'ws', 1)}/shell/connect"
    rest = urlsplit(service.rest)
    for name, status in ((rest.hostname, 403), ("rebound.evil.example", 421)):
        way = socket.create_connection((rest.hostname or "", rest.port or 0), timeout=60)
        with (
            pytest.raises(InvalidStatus) as refused,
            connect(f"ws://{name}:{rest.port}/shell/connect", sock=way, origin=Origin(EVIL)),
        ):
            pass
        assert refused.value.response.status_code == status
    with connect(door, origin=Origin("https://console.example.org")) as connection:
        connection.send("{}")
        assert "token" in json.loads(connection.recv())["error"]


def test_websocket_that_receives_invalid_text_closes_without_affecting_the_service(service: Service) -> None:
    door = f"{service.rest.replace('http', 'ws', 1)}/shell/connect"
    log = service.data / "service.log"
    before = log.read_text()
    with connect(door) as socket:
        socket.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv()
    assert closed.value.rcvd is not None and closed.value.rcvd.code == 1007
    assert service.ask("GET", "/trainshed/v1/status").status == 200
    assert log.read_text() == before
