"""Serves Kubeflow Trainer's status protocol at a replica's endpoint: a program reports its progress by a
POST, and the report is stored beside its log.

`POST /apis/trainer.kubeflow.org/v1alpha1/namespaces/P/trainjobs/J/status` at `HOST` over TLS, with the token
of this incarnation and

    {"trainerStatus": {"progressPercentage": 45, "estimatedRemainingSeconds": 60,
                       "metrics": [{"name": "loss", "value": "0.2"}], "lastUpdatedTime": "..."}}

in which every field is optional. `peers` decides who may connect at all.

A line of `progress.jsonl` is

    {"at": NS, "percent": N, "left": SECONDS, "metrics": {NAME: VALUE}, "incarnation": N}

without the fields that were not given. The file is thinned by `growing_files`.
"""

import hmac
import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from trainshed.replica.endpoint import messages
from trainshed.replica.observe import growing_files, masking
from trainshed.replica.observe import segments as log

HOST = "trainer.trainshed.internal"
"""The host that programs find it at."""
FILE = "progress.jsonl"

_PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/%s/trainjobs/%s/status"
_MOST_BYTES = 64 << 10
_MOST_METRICS = 256
_LONGEST_NAME = 256
_LONGEST_VALUE = 1024
_MOST_SECONDS = (1 << 31) - 1
_BURST = 10
"""Reports that may come at once."""
_PER_SECOND = 2.0
"""Reports that are taken over time."""
_CODES = {
    200: ("OK", ""),
    400: ("Bad Request", "INVALID_ARGUMENT"),
    401: ("Unauthorized", "UNAUTHENTICATED"),
    404: ("Not Found", "NOT_FOUND"),
    405: ("Method Not Allowed", "UNIMPLEMENTED"),
    411: ("Length Required", "INVALID_ARGUMENT"),
    413: ("Payload Too Large", "OUT_OF_RANGE"),
    422: ("Unprocessable Entity", "INVALID_ARGUMENT"),
    429: ("Too Many Requests", "RESOURCE_EXHAUSTED"),
    503: ("Service Unavailable", "UNAVAILABLE"),
}
"""By HTTP status: its reason phrase, and the name of the google.rpc code of a refusal."""


def path(namespace: str, job: str) -> str:
    """Return the path at `HOST` to which a job's program reports."""
    return _PATH % (namespace, job)


class Refusal(Exception):
    """A report is refused. The message says why, and what to do."""

    def __init__(self, code: int, text: str, fields: Iterable[bytes] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.fields = list(fields)


class TrainerStatus:
    """Takes the reports of one incarnation. Thread-safe."""

    __slots__ = (
        "_clock",
        "_file",
        "_incarnation",
        "_left",
        "_lock",
        "_mask",
        "_refilled",
        "_token",
    )

    def __init__(
        self,
        token: str,
        logs: str,
        incarnation: int,
        masked: Iterable[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens no file yet. `logs`: the directory of the replica's log. `masked`: texts that must not be
        stored."""
        self._token = token
        self._incarnation = incarnation
        texts = tuple(masked)
        self._mask = masking.Mask(texts) if texts else None
        self._file = growing_files.SampleFile(os.path.join(logs, FILE))
        self._clock = clock
        self._lock = threading.Lock()
        self._left = float(_BURST)
        self._refilled = clock()

    def answer(self, head: messages.Head, body: bytes) -> bytes:
        """Return the answer to a request for `HOST`, whose body `require_short` has accepted."""
        try:
            self._require_reporter(head)
            entry = entry_of(body)
            self._write(entry)
        except Refusal as refusal:
            return refused(refusal)
        return _answer(200, {"trainerStatus": {}}, [])

    def _require_reporter(self, head: messages.Head) -> None:
        words = head.first.split(b" ")
        asked = words[1].partition(b"?")[0]
        known = [part.encode("ascii") for part in _PATH.split("%s")]
        is_known = asked.startswith(known[0]) and known[1] in asked and asked.endswith(known[2])
        if not is_known:
            raise Refusal(
                404,
                "Only the status of a TrainJob is served here, as KUBEFLOW_TRAINER_SERVER_URL names it.",
            )
        if words[0] != b"POST":
            text = "A status is reported by POST, not by %s." % words[0].decode("ascii", "replace")
            raise Refusal(405, text, [b"Allow: POST"])
        said = b"".join(head.values(b"authorization")[:1]).split()
        if len(said) != 2 or said[0].lower() != b"bearer":
            raise Refusal(
                401,
                "Send `Authorization: Bearer TOKEN` with the token in the file that "
                "KUBEFLOW_TRAINER_SERVER_TOKEN names.",
            )
        if not hmac.compare_digest(said[1], self._token.encode("ascii")):
            raise Refusal(
                401,
                "This token is not of this attempt of the job: read the file that "
                "KUBEFLOW_TRAINER_SERVER_TOKEN names once more.",
            )

    def _write(self, entry: dict[str, Any]) -> None:
        with self._lock:
            now = self._clock()
            self._left = min(_BURST, self._left + (now - self._refilled) * _PER_SECOND)
            self._refilled = now
            if self._left < 1:
                text = "Reports come too often: send one every few seconds."
                raise Refusal(429, text, [b"Retry-After: 1"])
            self._left -= 1
            metrics = {
                self._shown(name): self._shown(value) for name, value in entry.pop("metrics", [])
            }
            if metrics:
                entry["metrics"] = metrics
            entry["at"] = log.now()
            entry["incarnation"] = self._incarnation
            try:
                if not self._file.is_open:
                    self._file.open()
                self._file.append(entry)
            except OSError as error:
                text = "The report cannot be written down (%s); send the next one." % error.strerror
                raise Refusal(503, text, [b"Retry-After: 5"]) from None

    def _shown(self, text: str) -> str:
        return self._mask.text(text) if self._mask is not None else text


def require_short(length: int, chunked: int) -> None:
    """Check that a body of this length (`messages`) is short enough to be read. Raises Refusal."""
    if length == chunked:
        raise Refusal(411, "Say how long the report is: Content-Length.")
    if length > _MOST_BYTES:
        raise Refusal(413, "A report has at most %d bytes, not %d." % (_MOST_BYTES, length))


def entry_of(body: bytes) -> dict[str, Any]:
    """Return what is stored of a report, `metrics` as pairs. Raises Refusal, which names every wrong
    field."""
    try:
        said: Any = json.loads(body.decode("utf-8"))
    except ValueError as error:
        raise Refusal(400, "The report is no JSON: %s." % error) from None
    except RecursionError:
        raise Refusal(400, "The report is nested too deeply.") from None
    status: dict[str, Any] | None = said.get("trainerStatus") if hasattr(said, "get") else None
    if not hasattr(status, "get"):
        raise Refusal(422, "trainerStatus: a JSON object is needed.")
    return _Reading(status or {}).entry()


class _Reading:
    """Validates one `trainerStatus` and collects what is wrong with it."""

    def __init__(self, status: dict[str, Any]) -> None:
        self._status = status
        self._wrong: list[str] = []

    def entry(self) -> dict[str, Any]:
        """Return the entry to store. Raises Refusal."""
        entry: dict[str, Any] = {}
        percent = self._number("progressPercentage", 100)
        if percent is not None:
            entry["percent"] = percent
        left = self._number("estimatedRemainingSeconds", _MOST_SECONDS)
        if left is not None:
            entry["left"] = left
        metrics = self._metrics()
        if metrics:
            entry["metrics"] = metrics
        updated = self._status.get("lastUpdatedTime")
        if updated is not None and not isinstance(updated, str):
            self._wrong.append("lastUpdatedTime: a time as text is needed")
        if self._wrong:
            raise Refusal(
                422, "; ".join("trainerStatus." + text for text in self._wrong[:20]) + "."
            )
        return entry

    def _number(self, name: str, most: int) -> int | None:
        value = self._status.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            self._wrong.append("%s: a whole number from 0 to %d is needed" % (name, most))
            return None
        return value

    def _metrics(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        metrics: list[Any] | None = self._status.get("metrics")
        if metrics is None:
            return found
        if not hasattr(metrics, "append") or len(metrics) > _MOST_METRICS:
            self._wrong.append("metrics: a list of at most %d is needed" % _MOST_METRICS)
            return found
        for number, metric in enumerate(metrics):
            fields: list[str] = []
            for name, most in (("name", _LONGEST_NAME), ("value", _LONGEST_VALUE)):
                text = metric.get(name) if hasattr(metric, "get") else None
                if isinstance(text, str) and 0 < len(text) <= most:
                    fields.append(text)
                else:
                    self._wrong.append(
                        "metrics[%d].%s: a text of 1 to %d characters is needed"
                        % (number, name, most)
                    )
            if len(fields) == 2:
                found.append((fields[0], fields[1]))
        return found


def refused(refusal: Refusal) -> bytes:
    """Return the HTTP answer of a refusal."""
    error = {"code": refusal.code, "message": refusal.text, "status": _CODES[refusal.code][1]}
    return _answer(refusal.code, {"error": error}, refusal.fields)


def _answer(code: int, value: object, fields: list[bytes]) -> bytes:
    body = json.dumps(value).encode("utf-8")
    first = ("HTTP/1.1 %d %s" % (code, _CODES[code][0])).encode("ascii")
    known = [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([first, *known, *fields, b"", body])
