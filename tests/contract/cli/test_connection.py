"""How a command finds its service, and how it reports errors."""

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


def test_missing_service_error_contains_the_start_command(trainshed: Invoke, tmp_path: Path) -> None:
    result = trainshed("jobs", "list")
    assert result.exit_code == 1
    assert result.stderr == (
        f"Error: No Trainshed service is running with its data in {tmp_path}. Start one: trainshed up"
        f" --data {tmp_path}\nTo use a service elsewhere: trainshed login URL\n"
    )


def test_stopped_service_is_reported_without_a_request(trainshed: Invoke, tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_service_file(tmp_path, "http://127.0.0.1:1", pid=ended.pid)
    result = trainshed("jobs", "list")
    assert result.exit_code == 1
    assert f"process {ended.pid}, has ended" in result.stderr


def test_unreachable_service_is_reported(service: FakeService, tmp_path: Path) -> None:
    write_service_file(tmp_path, "http://127.0.0.1:1")
    result = service.cli("jobs", "list")
    assert result.exit_code == 1
    assert "Nothing answers at http://127.0.0.1:1." in result.stderr
    assert "trainshed up" in result.stderr


def test_command_line_options_override_environment_variables(service: FakeService) -> None:
    service.on("GET", "/trainshed/v1/jobs", {"jobs": [], "nextPageToken": ""})
    env = {"TRAINSHED_ENDPOINT": "http://127.0.0.1:1", "TRAINSHED_TOKEN": "tok-en"}
    result = service.cli("jobs", "list", "--url", service.address, "--project", "q", env=env)
    assert result.exit_code == 0, result.stderr
    assert service.sent[0].query["project"] == "q"


def test_wrong_token_error_contains_advice_and_hides_the_token(service: FakeService) -> None:
    result = service.cli("jobs", "list", "--token", "wrong")
    assert result.exit_code == 1
    assert "Who are you?" in result.stderr
    assert "trainshed env --unset" in result.stderr
    assert "wrong" not in result.stderr


def test_each_wrong_field_of_a_rejected_request_is_printed_on_a_separate_line(service: FakeService) -> None:
    service.refuse("GET", "/trainshed/v1/jobs", 400, "long text", state="'X' is no state.", limit="is odd.")
    result = service.cli("jobs", "list", "--state", "X")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Error: The service rejected the request:",
        "  state: 'X' is no state.",
        "  limit: is odd.",
    ]


@pytest.mark.parametrize(
    "arguments", [("jobs", "list", "--limit", "0"), ("jobs", "describe"), ("jobs", "nonsense"), ("env", "x")]
)
def test_command_line_errors_exit_with_status_2(trainshed: Invoke, arguments: tuple[str, ...]) -> None:
    assert trainshed(*arguments).exit_code == 2


def test_command_whose_output_pipe_closes_prints_no_error(service: FakeService, tmp_path: Path) -> None:
    """A status of 1 would indicate a failed command, for example in a shell with `set -o pipefail`."""
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
    ("where", "name", "message"),
    [
        (
            ">/dev/full",
            "p",
            "Error: The output cannot be written: its disk is full. Free some space and try again.",
        ),
        (">&-", "p", ""),
        ("", r"$'caf\xe9'", r"Error: 'caf\udce9' is not valid UTF-8. Use a text that is."),
    ],
)
def test_output_and_encoding_errors_are_printed_as_a_single_sentence(
    service: FakeService, tmp_path: Path, where: str, name: str, message: str
) -> None:
    service.on("GET", "/trainshed/v1/jobs", {"jobs": [job("1")], "nextPageToken": ""})
    result = execute(
        *("bash", "-c", f"{sys.executable} -m trainshed jobs list --project {name} {where}"),
        env={**os.environ, "TRAINSHED_DATA": str(tmp_path)},
    )
    assert (result.returncode != 0, result.stderr.strip().partition("\n")[0]) == (bool(message), message)


@contextmanager
def early_closing_server(answer: bytes) -> Generator[str]:
    """Return the address of a server that reads part of a request, sends `answer` and closes the
    connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection = listener.accept()[0]
            connection.recv(65536)
            connection.sendall(answer)  # Unread data turns the close into a reset.
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_error_sent_before_the_end_of_an_upload_is_printed(trainshed: Invoke) -> None:
    """The service does not read the rest of a large body that it rejects."""
    body = b'{"error": {"message": "There is no bucket."}}'
    head = b"HTTP/1.1 404 No\r\ncontent-length: %d\r\n\r\n" % len(body)
    with early_closing_server(head + body) as url:
        words = ("buckets", "cp", "-", "gs://b/x", "--url", url, "--token", TOKEN)
        result = trainshed(*words, input=bytes(32 << 20))
    assert "There is no bucket." in result.stderr


def test_interrupted_download_keeps_the_existing_file(trainshed: Invoke, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("mine")
    with early_closing_server(b"HTTP/1.1 200 Fine\r\ncontent-length: 1000\r\n\r\nsome of it") as url:
        words = ("buckets", "cp", "gs://b/x", str(kept), "--url", url, "--token", TOKEN)
        assert trainshed(*words).exit_code == 1
    assert kept.read_text() == "mine"


@pytest.fixture
def login_json(tmp_path: Path, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    service.on("GET", "/trainshed/v1/whoami", {"email": "ana@corp.example"})
    return tmp_path / "config/trainshed/login.json"


def test_login_command_succeeds_despite_silent_and_closed_connections(
    service: FakeService, login_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Browsers open such connections in advance."""

    def token_response(*_: object) -> dict[str, str]:
        return {"token": TOKEN}

    monkeypatch.setattr(Client, "post_form", token_response)
    calls: list[socket.socket] = []

    def opens(page: str) -> bool:
        port = int(parse_qs(urlsplit(page).query)["port"][0])
        calls.append(socket.create_connection(("127.0.0.1", port)))
        gone = socket.create_connection(("127.0.0.1", port))
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        # The connections exist before the first one is accepted. A slow client counts as silent.
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


def test_login_with_empty_standard_input_is_rejected(service: FakeService, login_json: Path) -> None:
    result = service.cli("login", service.address, "--token", "-", input="")
    assert result.exit_code == 2 and "Standard input contains no token." in result.stderr


def test_login_does_not_keep_the_ca_of_another_service(service: FakeService, login_json: Path) -> None:
    login_json.parent.mkdir(parents=True)
    login_json.write_text(json.dumps({"url": "https://a.example", "token": "t", "ca": "/a.pem"}))
    assert service.cli("login", service.address, "--token", TOKEN).exit_code == 0
    assert json.loads(login_json.read_text())["ca"] == ""


@pytest.mark.parametrize(
    ("issuer", "stays"), [("Corp", ""), ("", " The token remains valid until it is deleted.")]
)
def test_login_forget_deletes_the_token_of_a_browser_login(
    service: FakeService, login_json: Path, issuer: str, stays: str
) -> None:
    service.on("GET", "/trainshed/v1/whoami", {"email": "ana@corp.example", "issuer": issuer})
    path = f"/trainshed/v1/tokens/{digest_of(TOKEN)[:12]}"
    service.on("DELETE", path, {})
    assert service.cli("login", service.address, "--token", TOKEN).exit_code == 0
    forgotten = service.cli("login", "--forget")
    assert forgotten.stdout == f"The login at {service.address} is deleted.{stays}\n"
    assert not login_json.exists()
    assert len(service.bodies("DELETE", path)) == bool(issuer)


def test_login_does_not_send_a_token_of_another_service(
    service: FakeService, login_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell has such a variable after `trainshed env`."""
    assert service.cli("login", service.address, "--token", TOKEN).exit_code == 0
    for name in ("TRAINSHED_ENDPOINT", "TRAINSHED_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINSHED_TOKEN", "another")
    service.on("GET", "/trainshed/v1/tokens", {"tokens": []})
    result = service.cli("list", "tokens")
    assert result.exit_code == 0, result.stderr


def test_login_reports_an_unwritable_login_file(service: FakeService, login_json: Path) -> None:
    login_json.mkdir(parents=True)
    result = service.cli("login", service.address, "--token", TOKEN)
    assert "login.json" in result.stderr and not isinstance(result.exception, OSError)


def test_relative_config_directory_is_not_used_for_logins(
    service: FakeService, login_json: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the owner of the working directory would choose the service."""
    monkeypatch.chdir(login_json.parents[2])
    monkeypatch.setenv("HOME", str(login_json.parents[1]))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert service.cli("login", service.address, "--token", TOKEN).exit_code == 0
    assert not Path("relative").exists()


@pytest.mark.parametrize("address", ["http://[", "http://h:99999", "http://h:x"])
def test_invalid_service_address_is_rejected(trainshed: Invoke, address: str) -> None:
    listing = trainshed("jobs", "list", "--url", address, "--token", "t")
    login = trainshed("login", address, "--no-browser")
    for result in (listing, login):
        assert "is not the address of a service" in result.stderr
        assert "Code" not in result.stderr, "no code is requested for an invalid address"
