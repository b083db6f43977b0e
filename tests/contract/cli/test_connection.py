"""How a command finds its service, and how it tells what is wrong."""

import json
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.commands import execute
from tests.contract.cli.conftest import Invoke, write_service_file
from tests.contract.cli.fake_service import TOKEN, FakeService, job
from trainshed.access.tokens import digest_of
from trainshed.cli import login
from trainshed.cli.client import Client


def test_without_a_service_it_says_how_to_start_one(trainshed: Invoke, tmp_path: Path) -> None:
    result = trainshed("jobs", "list")
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: No Trainshed service is running with its data in {tmp_path}. Start one: trainshed up"
        f" --data {tmp_path}\nTo use a service elsewhere: trainshed login URL\n"
    )


def test_a_service_that_has_ended_is_not_asked(trainshed: Invoke, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_service_file(tmp_path, "http://127.0.0.1:1", pid=ended.pid)
    result = trainshed("jobs", "list")
    assert result.exit_code == 1
    assert f"process {ended.pid}, has ended" in result.stderr


def test_nothing_answers(service: FakeService, tmp_path: Path) -> None:
    write_service_file(tmp_path, "http://127.0.0.1:1")
    result = service.cli("jobs", "list")
    assert result.exit_code == 1
    assert "Nothing answers at http://127.0.0.1:1." in result.stderr
    assert "trainshed up" in result.stderr


def test_the_command_line_wins_over_the_environment(service: FakeService) -> None:
    service.on("GET", "/trainshed/v1/jobs", {"jobs": [], "nextPageToken": ""})
    env = {"TRAINSHED_ENDPOINT": "http://127.0.0.1:1", "TRAINSHED_TOKEN": "tok-en"}
    result = service.cli("jobs", "list", "--url", service.address, "--project", "q", env=env)
    assert result.exit_code == 0, result.stderr
    assert service.sent[0].query["project"] == "q"


def test_a_wrong_token_says_what_to_do(service: FakeService) -> None:
    result = service.cli("jobs", "list", "--token", "wrong")
    assert result.exit_code == 1
    assert "Who are you?" in result.stderr
    assert "trainshed env --unset" in result.stderr
    assert "wrong" not in result.stderr


def test_every_violation_has_a_line(service: FakeService) -> None:
    service.refuse(
        "GET", "/trainshed/v1/jobs", 400, "long text", state="'X' is no state.", limit="is odd."
    )
    result = service.cli("jobs", "list", "--state", "X")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Error: The service rejected the request:",
        "  state: 'X' is no state.",
        "  limit: is odd.",
    ]


@pytest.mark.parametrize(
    "arguments",
    [("jobs", "list", "--limit", "0"), ("jobs", "describe"), ("jobs", "nonsense"), ("env", "x")],
)
def test_mistakes_in_the_command_line_exit_with_2(
    trainshed: Invoke, arguments: tuple[str, ...]
) -> None:
    assert trainshed(*arguments).exit_code == 2


def test_a_reader_who_has_enough_is_no_failure(service: FakeService, tmp_path: Path) -> None:
    """As with every command in a shell with `set -o pipefail`: 1 would say that what was asked for failed."""
    jobs = [job(str(number)) for number in range(2_000)]
    service.on("GET", "/trainshed/v1/jobs", {"jobs": jobs, "nextPageToken": ""})
    listing = f"{sys.executable} -m trainshed jobs list --project p --limit 2000"
    result = execute(
        *("bash", "-c", f"{listing} | head -1; echo ${{PIPESTATUS[0]}}"),
        env={**os.environ, "TRAINSHED_DATA": str(tmp_path)},
        check=True,
    )
    assert result.stdout.splitlines()[1:] == ["141"], result.stderr
    assert not result.stderr


@pytest.mark.parametrize(
    ("where", "name", "says"),
    [
        (">/dev/full", "p", "Error: The output cannot be written: no space is left there."),
        (">&-", "p", ""),
        ("", r"$'caf\xe9'", r"Error: 'caf\udce9' is not UTF-8, and has to be."),
    ],
)
def test_what_cannot_be_written_or_sent_is_told_in_a_sentence(
    service: FakeService, tmp_path: Path, where: str, name: str, says: str
) -> None:
    service.on("GET", "/trainshed/v1/jobs", {"jobs": [job("1")], "nextPageToken": ""})
    result = execute(
        *("bash", "-c", f"{sys.executable} -m trainshed jobs list --project {name} {where}"),
        env={**os.environ, "TRAINSHED_DATA": str(tmp_path)},
    )
    assert (result.returncode != 0, result.stderr.strip().partition("\n")[0]) == (bool(says), says)


@contextmanager
def breaking_off(answer: bytes) -> Generator[str]:
    """The address of what reads little of a request, answers so and is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection = listener.accept()[0]
            connection.recv(65536)
            connection.sendall(answer)  # What is unread then makes a reset of the end.
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_refusal_that_comes_before_all_is_sent_is_told(trainshed: Invoke) -> None:
    """The service reads no gigabyte that it refuses."""
    body = b'{"error": {"message": "There is no bucket."}}'
    head = b"HTTP/1.1 404 No\r\ncontent-length: %d\r\n\r\n" % len(body)
    with breaking_off(head + body) as url:
        words = ("buckets", "cp", "-", "gs://b/x", "--url", url, "--token", TOKEN)
        result = trainshed(*words, input=bytes(32 << 20))
    assert "There is no bucket." in result.stderr


def test_a_download_that_breaks_off_is_no_file(trainshed: Invoke, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    with breaking_off(b"HTTP/1.1 200 Fine\r\ncontent-length: 1000\r\n\r\nsome of it") as url:
        words = ("buckets", "cp", "gs://b/x", str(kept), "--url", url, "--token", TOKEN)
        assert trainshed(*words).exit_code == 1
    assert kept.read_text() == "mine"


@pytest.fixture
def login_json(tmp_path: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    service.on("GET", "/trainshed/v1/whoami", {"email": "ana@corp.example"})
    return tmp_path / "config/trainshed/login.json"


def test_a_login_waits_for_no_connection_that_is_silent_or_has_gone(
    service: FakeService, login_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As browsers open in advance."""

    def changed(*_: object) -> dict[str, str]:
        return {"token": TOKEN}

    monkeypatch.setattr(Client, "post_form", changed)
    calls: list[socket.socket] = []

    def opens(page: str) -> bool:
        port = int(parse_qs(urlsplit(page).query)["port"][0])
        calls.append(socket.create_connection(("127.0.0.1", port)))
        gone = socket.create_connection(("127.0.0.1", port))
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        # Sent before anybody is taken: who is slow to speak counts as silent.
        calls.append(socket.create_connection(("127.0.0.1", port)))
        calls[-1].sendall(b"GET /?code=c HTTP/1.1\r\n\r\n")
        return True

    service.on("GET", "/healthz", {})
    monkeypatch.setattr(login, "_open_page", opens)
    result = service.cli("login", service.address)
    for call in calls:
        call.close()
    assert result.exit_code == 0 and "Traceback" not in result.output
    assert json.loads(login_json.read_text())["token"] == TOKEN


def test_a_login_with_empty_input_asks_nobody_else(service: FakeService, login_json: Path) -> None:
    result = service.cli("login", service.address, "--token", "-", input="")
    assert result.exit_code == 2 and "Standard input contains no token." in result.stderr


def test_a_login_trusts_nobody_for_the_sake_of_another_service(
    service: FakeService, login_json: Path
) -> None:
    login_json.parent.mkdir(parents=True)
    login_json.write_text(json.dumps({"url": "https://a.example", "token": "t", "ca": "/a.pem"}))
    assert service.cli("login", service.address, "--token", TOKEN).exit_code == 0
    assert json.loads(login_json.read_text())["ca"] == ""


@pytest.mark.parametrize(
    ("issuer", "stays"), [("Corp", ""), ("", " The token remains valid until it is deleted.")]
)
def test_a_login_that_is_forgotten_ends_the_token_that_a_browser_gave(
    service: FakeService, login_json: Path, issuer: str, stays: str
) -> None:
    service.on("GET", "/trainshed/v1/whoami", {"email": "ana@corp.example", "issuer": issuer})
    path = f"/trainshed/v1/tokens/{digest_of(TOKEN)[:12]}"
    service.on("DELETE", path, {})
    assert service.cli("login", service.address, "--token", TOKEN).exit_code == 0
    forgotten = service.cli("login", "--forget")
    assert forgotten.stdout == f"{service.address} is forgotten.{stays}\n"
    assert not login_json.exists()
    assert len(service.bodies("DELETE", path)) == bool(issuer)


def test_a_login_sends_no_token_of_another_service(
    service: FakeService, login_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a shell has it after `trainshed env`."""
    assert service.cli("login", service.address, "--token", TOKEN).exit_code == 0
    for name in ("TRAINSHED_ENDPOINT", "TRAINSHED_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINSHED_TOKEN", "another")
    service.on("GET", "/trainshed/v1/tokens", {"tokens": []})
    result = service.cli("list", "tokens")
    assert result.exit_code == 0, result.stderr


def test_a_login_that_cannot_be_kept_says_so(service: FakeService, login_json: Path) -> None:
    login_json.mkdir(parents=True)
    result = service.cli("login", service.address, "--token", TOKEN)
    assert "login.json" in result.stderr and not isinstance(result.exception, OSError)


def test_a_relative_directory_keeps_no_login(
    service: FakeService, login_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever owns the directory that a command runs in chose its service."""
    monkeypatch.chdir(login_json.parents[2])
    monkeypatch.setenv("HOME", str(login_json.parents[1]))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert service.cli("login", service.address, "--token", TOKEN).exit_code == 0
    assert not Path("relative").exists()


@pytest.mark.parametrize("address", ["http://[", "http://h:99999", "http://h:x"])
def test_an_address_that_is_none_is_refused(trainshed: Invoke, address: str) -> None:
    listing = trainshed("jobs", "list", "--url", address, "--token", "t")
    login = trainshed("login", address, "--no-browser")
    for result in (listing, login):
        assert "is not the address of a service" in result.stderr
        assert "Code" not in result.stderr, "nobody is asked for a code that there is not"
