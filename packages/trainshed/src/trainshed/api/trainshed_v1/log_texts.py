"""Converts stored log lines to lines of the API's stream, a whole range at once. Pure.

Most lines are sent as they are stored: their text is JSON already, and only what surrounds it differs, so
that no text is decoded without need. Lines that are not written exactly as shims write them
(`replica.observe.segments`) are read like any other JSON.
"""

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Raw, Struct

from trainshed.api.calls.timestamps import whole_second
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import log_task_name
from trainshed.core.streams import StreamSource
from trainshed.store.logs.lines import Stream, read_line
from trainshed.store.logs.segments import decoded

AT: Final = len('{"at":"2026-11-22T08:46:44.123456789Z')
"""Number of characters at the beginning of a line that hold its time. Lines sort by time as these sort as
texts."""

_LEVEL_ANYWHERE: Final = (b"NCCL ", b"level=", b"lvl=", b"severity=", b"\\u001b")
"""Contents of lines that may name their severity elsewhere than at the beginning."""
_SECOND: Final = 10**9


class _Stored(Struct, gc=False):
    """A stored line whose text is not decoded."""

    n: int
    t: int
    s: Literal["o", "e", "b"]
    m: Raw


_PLAIN: Final = r'"(?:[a-z"]|[A-Z][a-z ]).*|"[0-9][^:\n]*'
"""Texts on stdout that name no level at their beginning (`store.logs.lines.begins_plainly`)."""
_AS_WRITTEN: Final = re.compile(
    r'\{"n":(\d+),"t":(\d{10})(\d{9}),'
    rf'(?:"s":"o","m":({_PLAIN})|"s":"([oeb])","m":(.*))\}}\n'
)
"""A stored line that is known to be JSON. Nothing within a text can match what surrounds it, because each
quote in a text follows a backslash."""
_decode_lines: Final = msgspec.json.Decoder(_Stored).decode_lines
_decode_text: Final = msgspec.json.Decoder(str).decode
_encode: Final = msgspec.json.Encoder().encode
_STREAMS: Final = {stream.value: stream for stream in Stream}


def log_texts(job: Job, source: StreamSource, data: bytes) -> Sequence[str]:
    """Return a `LogLine` per line, with line ends, for `data`, which holds whole lines of a replica of the
    job."""
    task = log_task_name(job.name.api, source.replica)
    writer = f'"replica":"{source.replica}","task":"{task}","attempt":{source.attempt}'
    trial = f',"trial":{job.parent.trial}' if job.parent and job.parent.trial else ""
    may_say_level = any(word in data for word in _LEVEL_ANYWHERE)
    texts: list[str] = []
    add = texts.append
    current = before = plainly = after = form = ""
    for number, second, nanos, plain, stream, text in _entries(data):
        if second != current:
            current = second
            before = f'{{"at":"{whole_second(int(second))}.'
            plainly = f'Z",{writer},"severity":"INFO","message":'
            after = f"{trial}}}\n"
            form = f'{before}%sZ",{writer},"severity":"%s","message":%s,"n":%s{after}'
        if plain and not may_say_level:
            add(f'{before}{nanos}{plainly}{plain},"n":{number}{after}')
            continue
        lies = plain or text
        content = _decode_text(lies)
        reading = read_line(_STREAMS[stream or "o"], content)
        shown = lies if reading.text is content else _encode(reading.text).decode()
        add(form % (nanos, reading.severity.value, shown, number))
    return texts


def _entries(data: bytes) -> Sequence[tuple[str, ...]]:
    """Return of each whole line: number, second, nanoseconds, the text as JSON if it is plain, else stream
    and text. Lines that a crash of the machine has damaged are left out."""
    try:
        # Checked here, because readers decode the text and need valid UTF-8.
        text = data.decode()
        stored = _decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        stored = [
            _Stored(entry.n, entry.t, entry.s, Raw(_encode(entry.m)))
            for raw in data.split(b"\n")
            if (entry := decoded(raw))
        ]
    else:
        entries = _AS_WRITTEN.findall(text)
        if len(entries) == len(stored):
            return entries
    return [
        (
            str(line.n),
            str(line.t // _SECOND),
            f"{line.t % _SECOND:09}",
            "",
            line.s,
            str(line.m, "utf-8"),
        )
        for line in stored
    ]
