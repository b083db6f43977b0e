"""A job's log from its three sources: the files, Trainshed's own API, and the Logging API."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.victim import request
from tests.e2e.running import PROJECT, Service

_SPOKEN = re.compile(r"([0-9a-f]{12}) (\d+) workerpool\d-\d+ life \d+ pid \d+")
_CUT = re.compile(r"[0-9a-f]{1,12}( \d*[ \w-]*)?")
_SEGMENT = re.compile(r"\d{12}\.jsonl")


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive lines of an incarnation in a log: numbers `0..lines-1`, in attempt `attempt`."""

    token: str
    attempt: int
    lines: int


Line = tuple[int, str]
"""Attempt and text."""


def program_lines(lines: Iterable[Line]) -> list[Line]:
    """Return the programs' own lines, without the prefix of the service."""
    return [(attempt, text) for attempt, text in lines if _SPOKEN.fullmatch(text)]


def parts(lines: Iterable[Line]) -> tuple[list[Part], list[str]]:
    """Return the incarnations in a replica's lines, in order, and the errors found."""
    lives: list[Part] = []
    wrong: list[str] = []
    for attempt, text in lines:
        match = _SPOKEN.fullmatch(text)
        if match is None:
            # Only the last line of a killed incarnation may be truncated.
            if not _CUT.fullmatch(text):
                wrong.append(f"not a line of the program: {text!r}")
            continue
        token, number = match[1], int(match[2])
        last = lives[-1] if lives else None
        if last is None or (last.token, last.attempt) != (token, attempt):
            if any(part.token == token for part in lives):
                wrong.append(f"life {token} comes back with line {number}")
            lives.append(last := Part(token, attempt, 0))
        if number != last.lines:
            wrong.append(f"life {token}: line {number} where {last.lines} should be")
        lives[-1] = Part(token, attempt, number + 1)
    return lives, wrong


@dataclass
class Files:
    """The files of a job's log, over all attempts. `lines`: the programs' standard output, by replica.
    `counts`: all lines, by attempt and replica.
    """

    lines: dict[str, list[Line]]
    counts: dict[tuple[int, str], int]
    wrong: list[str]


def from_files(data: Path, uid: str, *, torn: bool = False) -> Files:
    """Read the segments and check them: consecutive numbers, ascending times, nothing on standard error.

    `torn`: whether a writer was killed, which may leave a truncated line if the disk was full.
    """
    files = Files({}, {}, [])
    job = data / "logs" / uid
    attempts = sorted(int(path.name) for path in job.iterdir()) if job.is_dir() else []
    for attempt in attempts:
        for directory in sorted((job / str(attempt)).iterdir()):
            last = 0
            for entry in _entries(directory, files.wrong, torn):
                where = f"attempt {attempt}, {directory.name}"
                count = files.counts.get((attempt, directory.name), 0)
                if entry["n"] != count or entry["t"] <= last:
                    files.wrong.append(
                        f"{where}: line {entry['n']} at {entry['t']} comes after {count - 1} at {last}"
                    )
                last = entry["t"]
                files.counts[attempt, directory.name] = entry["n"] + 1
                if entry["s"] == "o":
                    files.lines.setdefault(directory.name, []).append((attempt, entry["m"]))
                elif entry["s"] == "e":
                    files.wrong.append(f"{where}: on standard error: {entry['m']!r}")
    return files


def _entries(directory: Path, wrong: list[str], torn: bool) -> Iterator[dict[str, Any]]:
    for path in sorted(p for p in directory.iterdir() if _SEGMENT.fullmatch(p.name)):
        text = path.read_text("utf-8")
        whole, _, rest = text.rpartition("\n")
        if rest and not torn:
            wrong.append(f"{path} ends in the middle of a line")
        for raw in whole.splitlines():
            yield json.loads(raw)


def from_our_api(service: Service, target: str) -> dict[str, list[Line]]:
    """Return lines by replica from `GET /trainshed/v1/jobs/{job}/logs`."""
    lines: dict[str, list[Line]] = {}
    for text in filter(bytes.strip, service.stream(f"/trainshed/v1/jobs/{target}/logs")):
        line = json.loads(text)
        lines.setdefault(line["replica"], []).append((line["attempt"], line["message"]))
    return lines


def from_logging_api(service: Service, job_id: str, size: int) -> tuple[dict[str, list[str]], list[str]]:
    """Return texts by task name from all pages of `entries:list`. Check that entries are unique and in order
    of time.
    """
    texts: dict[str, list[str]] = {}
    wrong: list[str] = []
    seen: set[str] = set()
    last = ""
    body: dict[str, Any] = {
        "resourceNames": [f"projects/{PROJECT}"],
        "filter": f'resource.labels.job_id="{job_id}"',
        "pageSize": size,
    }
    while True:
        page = request(service, "POST", "/v2/entries:list", body)
        for entry in page.get("entries", ()):
            if entry["insertId"] in seen:
                wrong.append(f"entry {entry['insertId']} is given twice")
            seen.add(entry["insertId"])
            at = _moment(entry["timestamp"])
            if at < last:
                wrong.append(f"entry {entry['insertId']} at {at} comes after {last}")
            last = at
            task = entry["resource"]["labels"]["task_name"]
            text = entry.get("textPayload") or entry.get("jsonPayload", {}).get("message", "")
            texts.setdefault(task, []).append(text)
        if not (token := page.get("nextPageToken", "")):
            return texts, wrong
        body["pageToken"] = token


def _moment(text: str) -> str:
    """Return RFC 3339 in UTC with nine digits, so that times compare as texts."""
    whole, _, part = text.removesuffix("Z").partition(".")
    return f"{whole}.{part:0<9}"
