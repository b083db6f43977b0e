"""Logging v2 `entries:write`: what a program says by google-cloud-logging becomes lines of its own replica's
log.

There it stands beside what the program prints, with its severity and payload, in the order in which it came:
names of logs, resources and times of its own are not kept. Who is no program has no log to write to.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import Message

from trainshed.api.calls.call import Call, Handlers
from trainshed.core.errors import FailedPrecondition, InvalidRequest, Unavailable, Violation
from trainshed.core.names import JobUid, ReplicaId
from trainshed.wire import json as wire_json
from trainshed.wire import pool

_SERVICE: Final = "google.logging.v2.LoggingServiceV2"
_DIAGNOSTIC: Final = "logging.googleapis.com/diagnostic"
"""By an entry of this alone client libraries say which they are, once for each program."""


async def write(call: Call, request: Any) -> Message:
    """Returns when every line can be read."""
    program = call.principal.program
    if program is None:
        raise FailedPrecondition(
            "Log entries are taken of programs of jobs, which write to their own log: this token is a "
            "person's. `trainshed jobs logs JOB` and entries:list read them."
        )
    if not all(entry.log_name or request.log_name for entry in request.entries):
        raise InvalidRequest(
            (
                Violation(
                    "log_name", "Name a log, here or in each entry: projects/PROJECT/logs/LOG."
                ),
            )
        )
    if call.services.program_logs is None:
        raise Unavailable("This service has no way into the logs of programs.")
    told = (entry for entry in request.entries if set(entry.json_payload) != {_DIAGNOSTIC})
    lines = [_line(entry, dict(request.labels)) for entry in told]
    if lines and not request.dry_run:
        await call.services.program_logs.write(
            JobUid(program.job_uid), program.attempt, ReplicaId.parse(program.replica), lines
        )
    return pool.message_class("google.logging.v2.WriteLogEntriesResponse")()


HANDLERS: Final[Handlers] = {f"{_SERVICE}.WriteLogEntries": write}


def _line(entry: Any, labels: dict[str, str]) -> str:
    """As a program would print it: one JSON object, of which the log knows `severity` and `message`."""
    kind = entry.proto_payload.type_url.rpartition("/")[2]
    entry.ClearField("proto_payload")  # Which type it is of, only its sender knows.
    public = wire_json.to_public(entry)
    said = {"severity": public.get("severity", "DEFAULT")}
    if kind:
        said["message"] = f"(an entry of the type {kind}, which is not read here)"
    said |= dict(_content(entry, public))
    if labels := {**labels, **entry.labels}:
        said.setdefault("labels", labels)
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def _content(entry: Any, public: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    match entry.WhichOneof("payload"):
        case "text_payload":
            yield "message", entry.text_payload
        case "json_payload":
            payload: dict[str, Any] = public["jsonPayload"]
            yield from (each for each in payload.items() if each[0] != "severity")
        case _:
            pass
    for name in ("httpRequest", "sourceLocation", "trace", "spanId"):
        if name in public:
            yield name, public[name]
