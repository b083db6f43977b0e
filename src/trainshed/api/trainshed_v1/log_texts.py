"""Stored lines of a log as the lines of the API's stream, a whole range at once. Pure.

Nearly every line is sent as it lies: its text is JSON already, and only what stands around it differs, so
that none is decoded that need not be. What is not written just as shims write it
(`replica.observe.segments`) is read as any other JSON.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from trainshed.api.calls.timestamps import whole_second
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import log_task_name
from trainshed.core.streams import StreamSource
from trainshed.store.logs.lines import Stream, begins_plainly, read_line
from trainshed.store.logs.segments import decoded

AT: Final = len('{"at":"2026-11-22T08:46:44.123456789Z')
"""Characters of a line after which its moment is told: lines order by time as these do as texts."""

_LEVEL_ANYWHERE: Final = (b"NCCL ", b"level=", b"lvl=", b"severity=", b"\\u001b")
"""By what a line may say its level that does not begin with it."""
_SECOND: Final = 10**9


class _Stored(Struct, gc=False):
    """A stored line, its text not decoded."""

    n: int
    t: int
    s: Literal["o", "e", "b"]
    m: Raw


_decode_lines: Final = msgspec.json.Decoder(_Stored).decode_lines
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode
_STREAMS: Final = {stream.value: stream for stream in Stream}


def log_texts(job: Job, source: StreamSource, data: bytes) -> Sequence[str]:
    """Lines of a `LogLine` each, with their line ends, of whole lines of a replica of the job."""
    task = log_task_name(job.name.api, source.replica)
    writer = f'"replica":"{source.replica}","task":"{task}","attempt":{source.attempt}'
    trial = f',"trial":{job.parent.trial}' if job.parent and job.parent.trial else ""
    may_say_level = any(word in data for word in _LEVEL_ANYWHERE)
    texts: list[str] = []
    add = texts.append
    second, form, plain = 0, "", ""
    for stored in _lines(data):
        nanos = stored.t - second
        if not 0 <= nanos < _SECOND:
            nanos = stored.t % _SECOND
            second = stored.t - nanos
            at = whole_second(second // _SECOND)
            form = f'{{"at":"{at}.%09dZ",{writer},"severity":"%s","message":%s,"n":%d{trial}}}\n'
            plain = form.replace("%s", "INFO", 1)
        text = str(stored.m, "utf-8")
        if stored.s == "o" and not may_say_level:
            beginning = _beginning(text[1:3])
            if beginning or (beginning is None and ":" not in text):
                add(plain % (nanos, text, stored.n))
                continue
        said = _decode_text(text)
        reading = read_line(_STREAMS[stored.s], said)
        shown = text if reading.text is said else _encode(reading.text).decode()
        add(form % (nanos, reading.severity.value, shown, stored.n))
    return texts


@lru_cache(4096)
def _beginning(two: str) -> bool | None:
    """Whether texts on stdout that begin so say no level there; None = if they have no colon."""
    if two[:1].isdecimal():
        return None
    return two[:1] != '"' and begins_plainly(two)


def _lines(data: bytes) -> Sequence[_Stored]:
    """Those that are whole: a crash of the machine may have damaged some."""
    try:
        # A text is decoded by whoever reads it, and must be one.
        data.decode()
        return _decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    return [
        _Stored(entry.n, entry.t, entry.s, Raw(_encode(entry.m)))
        for raw in data.split(b"\n")
        if (entry := decoded(raw))
    ]
