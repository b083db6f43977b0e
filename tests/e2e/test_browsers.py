"""What a stranger's page in a browser of this machine can do: other names, other origins, WebSockets."""

import contextlib
import http.client
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


def asked(
    service: Service, place: str, verb: str, path: str, headers: dict[str, str]
) -> tuple[int, str]:
    """Status and error message of a call with the service's token."""
    parts = urlsplit(str(service.extra[place]))
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    with contextlib.closing(connection):
        connection.request(
            verb, path, headers={"Authorization": f"Bearer {service.token}", **headers}
        )
        answer = connection.getresponse()
        content = answer.read()
        message = json.loads(content)["error"]["message"] if answer.status >= 400 else ""
        return answer.status, message


@pytest.mark.parametrize(
    ("place", "path"),
    [("rest", "/trainshed/v1/status"), ("storage", "/storage/v1/b?project=trainshed")],
)
def test_a_name_that_is_none_of_ours_is_refused(service: Service, place: str, path: str) -> None:
    code, message = asked(service, place, "GET", path, {"Host": "rebound.evil.example:8080"})
    assert code == 421
    assert 'TRAINSHED_ALLOWED_HOSTS="rebound.evil.example"' in message
    for host in ("localhost:1", "training.example.org", "ml.googleapis.com", "127.0.0.1"):
        assert asked(service, place, "GET", path, {"Host": host})[0] == 200


@pytest.mark.parametrize("verb", ["POST", "DELETE", "PUT", "PATCH"])
@pytest.mark.parametrize("place", ["rest", "storage"])
@pytest.mark.parametrize("origin", [EVIL, "null"])
def test_a_foreign_page_changes_nothing(
    service: Service, place: str, verb: str, origin: str
) -> None:
    path = f"{CUSTOM_JOBS}/1" if place == "rest" else "/storage/v1/b/trainshed/o/x"
    code, message = asked(service, place, verb, path, {"Origin": origin})
    assert code == 403
    assert "web_url" in message
    for own in (str(service.extra[place]), "https://console.example.org"):
        assert "web_url" not in asked(service, place, verb, path, {"Origin": own})[1]


def test_a_foreign_page_has_no_web_socket(service: Service) -> None:
    door = f"{service.rest.replace('http', 'ws', 1)}/shell/connect"
    rest = urlsplit(service.rest)
    for name, status in ((rest.hostname, 403), ("rebound.evil.example", 421)):
        way = socket.create_connection((rest.hostname or "", rest.port or 0), timeout=20)
        with (
            pytest.raises(InvalidStatus) as refused,
            connect(f"ws://{name}:{rest.port}/shell/connect", sock=way, origin=Origin(EVIL)),
        ):
            pass
        assert refused.value.response.status_code == status
    with connect(door, origin=Origin("https://console.example.org")) as connection:
        connection.send("{}")
        assert "token" in json.loads(connection.recv())["error"]


def test_a_text_that_is_none_closes_the_web_socket_and_nothing_else(service: Service) -> None:
    door = f"{service.rest.replace('http', 'ws', 1)}/shell/connect"
    log = service.data / "service.log"
    before = log.read_text()
    with connect(door) as socket:
        socket.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007
    assert asked(service, "rest", "GET", "/trainshed/v1/status", {})[0] == 200
    assert log.read_text() == before
