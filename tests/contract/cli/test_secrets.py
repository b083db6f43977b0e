"""`trainshed secrets`: requests and output. A secret's value is never printed."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.contract.cli.fake_service import FakeService

SECRETS = "/trainshed/v1/secrets"
VALUE = "correct horse"


def accept_secret(service: FakeService) -> None:
    service.on("POST", SECRETS, {"project": "p", "name": "db", "version": 3, "created": ""})


def sent_request(service: FakeService) -> dict[str, Any]:
    (body,) = service.bodies("POST", SECRETS)
    return json.loads(body)


def shows_no_value(result: Result) -> bool:
    return VALUE not in result.output and VALUE not in result.stderr


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (VALUE, VALUE),
        (f"{VALUE}\n", VALUE),
        (f" {VALUE} \n\n", f" {VALUE} \n\n"),
        ("-----BEGIN\nMIIE\n", "-----BEGIN\nMIIE\n"),
    ],
)
def test_secret_value_is_read_from_standard_input(service: FakeService, words: str, value: str) -> None:
    accept_secret(service)
    result = service.cli("secrets", "set", "db", input=words)
    assert result.exit_code == 0, result.output
    assert sent_request(service) == {"name": "db", "value": value, "project": "p"}
    assert "version 3" in result.stdout and "$(secret:db)" in result.stdout
    assert shows_no_value(result)


def test_secret_value_is_read_from_a_file_or_variable(
    service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_secret(service)
    (tmp_path / "value").write_text(f"{VALUE}\n")
    monkeypatch.setenv("DB_PASSWORD", "from env")
    service.cli("secrets", "set", "db", "--from-file", str(tmp_path / "value"), "--project", "q")
    service.cli("secrets", "set", "db", "--from-env", "DB_PASSWORD")
    first, second = map(json.loads, service.bodies("POST", SECRETS))
    assert (first["value"], first["project"]) == (VALUE, "q")
    assert (second["value"], second["project"]) == ("from env", "p")


@pytest.mark.parametrize(
    ("arguments", "words", "code", "text"),
    [
        (("db", VALUE), "", 2, "cannot be given on the command line"),
        (("db", "--from-file", "/nowhere/at/all"), "", 1, "cannot be read: No such file"),
        (("db",), b"\xff\xfe", 1, "Encode the value as base64"),
    ],
)
def test_unusable_secret_value_is_rejected_before_sending(
    service: FakeService, arguments: tuple[str, ...], words: str | bytes, code: int, text: str
) -> None:
    result = service.cli("secrets", "set", *arguments, input=words)
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
    assert shows_no_value(result)
    assert service.sent == []
