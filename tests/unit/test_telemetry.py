"""Lines of the service's log (docs/settings.md, docs/adr/0049)."""

import asyncio
import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from trainshed.api.calls.http import serve_logged
from trainshed.telemetry.lines import OWN_DISTRIBUTIONS, JsonLines, TextLines, about, configure, request_id
from trainshed.telemetry.meters import Meters

log = logging.getLogger("trainshed.test")


class FormattedLog:
    """Collects the lines of `log` in the form of a formatter."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._stream = io.StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.setFormatter(formatter)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()


@pytest.fixture
def log_levels() -> Iterator[None]:
    """Restores the levels of the loggers after the test."""
    root, loggers = (logging.getLogger(), [logging.getLogger(name) for name in ("", *OWN_DISTRIBUTIONS)])
    handlers, kept = root.handlers[:], [logger.level for logger in loggers]
    yield
    root.handlers[:] = handlers
    for logger, level in zip(loggers, kept, strict=True):
        logger.setLevel(level)


def formatted_lines(formatter: logging.Formatter, tell: Any) -> list[str]:
    """Return the lines that `tell` logs."""
    kept = FormattedLog(formatter)
    log.addHandler(kept.handler)
    try:
        tell()
    finally:
        log.removeHandler(kept.handler)
    return kept.lines


def log_replica_event() -> None:
    job = about(log, 12, attempt=2, replica="worker-1")
    job.warning("autopsy not saved: %s", 'No "space"\x1b[2J\nleft')


def test_text_line_of_the_service_log_contains_job_attempt_and_replica_as_keys() -> None:
    def printable(text: str) -> str:
        return text.replace("\x1b", "?")

    (line,) = formatted_lines(TextLines(printable), log_replica_event)
    time, rest = line.split(" ", 1)
    assert time.startswith("time=20") and time.endswith("Z")
    assert rest == (
        "level=warning logger=trainshed.test job=12 attempt=2 replica=worker-1 "
        'message="job 12 attempt 2 replica worker-1: autopsy not saved: No \\"space\\"\\u001b[2J\\nleft"'
    )


def test_traceback_follows_the_line_in_a_text_log_and_is_a_field_in_a_json_log() -> None:
    def fail() -> None:
        try:
            raise ValueError("why")
        except ValueError:
            about(log, 7).exception("100 %% failed in %s", "x")

    text = formatted_lines(TextLines(str), fail)
    assert text[0].endswith('job=7 message="job 7: 100 % failed in x"')
    assert text[1].startswith("Traceback") and text[-1] == "ValueError: why"
    (line,) = formatted_lines(JsonLines(), fail)
    assert json.loads(line)["traceback"].endswith("ValueError: why")


@pytest.mark.usefixtures("log_levels")
@pytest.mark.parametrize(
    ("level", "own", "others"),
    [("debug", "debug", "warning"), ("warning", "warning", "warning"), ("error", "error", "error")],
)
def test_log_level_setting_applies_only_to_loggers_of_this_project(
    level: Any, own: str, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    logging.getLogger().handlers.clear()
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure("json", level, str)
    for name in ("debug", "info", "warning", "error"):
        for logger in ("trainshed.a", "trainshed_tracking.a", "library"):
            logging.getLogger(logger).log(logging.getLevelNamesMapping()[name.upper()], "x")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    first = {line["logger"]: line["level"] for line in reversed(lines)}
    assert first == {"trainshed.a": own, "trainshed_tracking.a": own, "library": others}


def request_app(path: str, sent: bytes | None, *, status: int = 200) -> tuple[dict[bytes, bytes], str]:
    """Send a request. Return the response's headers, and the request ID while the request was handled."""
    seen: list[str] = []
    started: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            started.append(message)

    async def answer(_: object, __: object, send_logged: Any) -> None:
        seen.append(request_id.get() or "")
        await asyncio.sleep(0)
        head = {"type": "http.response.start", "status": status, "headers": [(b"a", b"b")]}
        await send_logged(head)
        await send_logged({"type": "http.response.body", "body": b""})

    headers = [] if sent is None else [(b"x-request-id", sent)]
    scope = {"type": "http", "method": "GET", "path": path, "headers": headers}
    receive: Any = None
    asyncio.run(serve_logged(answer, scope, receive, send, Meters()))
    return dict(started[0]["headers"]), seen[0]


def test_response_contains_the_request_id_of_the_client_or_a_new_request_id() -> None:
    headers, seen = request_app("/v1", b"mine.12-3_4")
    assert headers == {b"a": b"b", b"x-request-id": b"mine.12-3_4"} and seen == "mine.12-3_4"
    for bad in (None, b"", b"a b", b"x" * 65, b"a\nb", "é".encode()):
        headers, seen = request_app("/v1", bad)
        assert headers[b"x-request-id"].decode() == seen
        assert len(seen) == 16 and seen != bad
    assert request_app("/v1", None)[1] != request_app("/v1", None)[1]
    assert request_id.get() is None


def test_each_http_request_is_logged_without_the_access_key_in_the_url(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "trainshed.requests"):
        request_app("/with/SECRETKEY/storage/v1/b", None, status=404)
        request_app("/tensorboard/7-8/MARK/data/runs", None, status=200)
    storage, view = caplog.records
    assert storage.levelno == logging.INFO
    line = storage.getMessage()
    assert line.startswith("GET /with/KEY/storage/v1/b 404 ") and line.endswith(" ms")
    assert view.getMessage().startswith("GET /tensorboard/7-8/KEY/data/runs 200 ")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "trainshed.requests"):
        request_app("/v1", None)
    assert not caplog.records
