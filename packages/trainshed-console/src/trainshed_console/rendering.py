"""Renders templates to HTML, and serves the static files of pages.

Templates escape each value. Filters also remove terminal sequences and bidirectional control characters from
the output of programs. A line with terminal colours becomes pieces of text with style classes. Each line
starts without a style, because the page may show it without the lines before it.
"""

import gzip
import hashlib
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

from msgspec import Struct

from trainshed.core.progress import remaining_text
from trainshed.httpd.messages import Request, Response, sized_response

if TYPE_CHECKING:
    from jinja2 import Environment

ASSETS: Final = "/assets/"
_HERE: Final = Path(__file__).parent
_KINDS: Final = {
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_FOREVER: Final = (b"cache-control", b"public, max-age=31536000, immutable")
_NOSNIFF: Final = (b"x-content-type-options", b"nosniff")


class Asset(Struct, frozen=True):
    """A static file."""

    #: The path of its URL, such as `/assets/console.3f2a90c1e5b7.css`.
    address: str
    content: bytes
    #: The content, compressed with gzip.
    gzip_content: bytes
    #: The media type.
    kind: bytes


@cache
def _assets() -> dict[str, Asset]:
    """Return the static files by name, such as `vendor/htmx.min.js`."""
    files: dict[str, Asset] = {}
    for folder in ("", "vendor"):
        for entry in _HERE.joinpath("static", folder).iterdir():
            stem, _, suffix = entry.name.rpartition(".")
            if suffix in _KINDS and entry.is_file():
                content = entry.read_bytes()
                digest = hashlib.sha256(content).hexdigest()[:12]
                files[f"{folder}/{entry.name}".lstrip("/")] = Asset(
                    f"{ASSETS}{stem}.{digest}.{suffix}",
                    content,
                    gzip.compress(content, 9, mtime=0),
                    _KINDS[suffix],
                )
    return files


@cache
def _by_address() -> dict[str, Asset]:
    return {asset.address: asset for asset in _assets().values()}


def address_of(name: str) -> str:
    """Return the URL path of a static file. Raises KeyError for an unknown name."""
    return _assets()[name].address


@cache
def assets_digest() -> str:
    """Return a digest of all static files. The digest changes with each release that changes a file."""
    return hashlib.sha256("".join(sorted(_by_address())).encode()).hexdigest()[:12]


def asset_response(request: Request) -> Response | None:
    """Return the response with the file at the request's path, or None if no such file exists."""
    asset = _by_address().get(request.path)
    if asset is None:
        return None
    more = [_FOREVER, _NOSNIFF, (b"vary", b"accept-encoding")]
    packed = "gzip" in request.headers.get("accept-encoding", "")
    if packed:
        more.append((b"content-encoding", b"gzip"))
    content = asset.gzip_content if packed else asset.content
    answer = sized_response(content, asset.kind, more=more)
    return answer if request.method != "HEAD" else Response(b"", 200, answer.headers)


_UNPRINTABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_SEQUENCES: Final = re.compile(
    "\x1b\\[[0-9;:?]*[ -/]*[@-~]|\x1b\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|\x1b[ -/]{1,3}[0-~]|\x1b[0-Z^-~]"
)
_STATE_CLASSES: Final = {
    state: name
    for name, states in (
        ("run", "RUNNING UPDATING ACTIVE"),
        ("good", "SUCCEEDED COMPLETE COMPLETED READY SKIPPED"),
        ("bad", "FAILED EXPIRED QUARANTINED GONE LOST INFEASIBLE"),
        ("wait", "QUEUED PREPARING WAITING PAUSED DRAINED LAUNCHING STARTING REQUESTED"),
        ("off", "CANCELLING CANCELLED EXITED PENDING STOPPING"),
    )
    for state in states.split()
}


@cache
def environment() -> "Environment":
    """Return the Jinja environment. It is created with the first page, so that a service without visitors
    does not load Jinja."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folder = _HERE.joinpath("templates")
    made = Environment(
        loader=FunctionLoader(lambda name: folder.joinpath(name).read_text("utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = cast(dict[str, Any], made.filters)
    filters |= {
        "state_class": state_class,
        "readable": readable,
        "clean": clean,
        "coloured": color_pieces,
        "bytes": bytes_text,
        "seconds": seconds_text,
        "left": remaining_text,
        "number": number_text,
        "id": id_of,
        "job": _job_address,
        "q": _quote,
        "spark": spark,
        "folder": folder_address,
    }
    names = cast(dict[str, Any], made.globals)
    names |= {"asset": address_of, "assets_digest": assets_digest}
    return made


def id_of(name: str) -> str:
    """Return the last part of a resource's name, which is the ID of the resource in its collection."""
    return name.rpartition("/")[2]


def _job_address(name: str) -> str:
    """Return the path of a job's page. It contains the project for AI Platform jobs and pipeline jobs,
    because their IDs are unique only within a project."""
    match name.split("/"):
        case ["projects", project, "jobs", own_id]:
            return quote(f"/jobs/{project}/named/{own_id}")
        case ["projects", project, "locations", region, "pipelineJobs", own_id]:
            return f"{quote(f'/jobs/{project}/named/{own_id}')}?region={_quote(region)}"
        case _:
            return quote(f"/jobs/{id_of(name)}")


def _quote(text: object) -> str:
    return quote(str(text), safe="")


def folder_address(uri: str) -> str:
    """Return the path of the bucket page for the folder of a gs:// URI, or "" for other texts. A name with a
    wildcard, or with a dot in its last part, is treated as a file."""
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    if not uri.startswith("gs://") or not bucket:
        return ""
    plain = re.split(r"[*?\[]", name, maxsplit=1)[0]
    last = plain.rpartition("/")[2]
    is_file = plain != name or (last and "." in last)
    prefix = plain.rpartition("/")[0] if is_file else plain.rstrip("/")
    return f"/buckets/{_quote(bucket)}" + (f"?prefix={_quote(prefix + '/')}" if prefix else "")


@cache
def prepare() -> None:
    """Load all templates and assets. The first call blocks for about half a second; call it in a thread."""
    made = environment()
    for entry in _HERE.joinpath("templates").iterdir():
        made.get_template(entry.name)
    address_of("console.css")


def is_prepared() -> bool:
    return prepare.cache_info().currsize > 0


def render(template: str, values: Mapping[str, Any]) -> str:
    return environment().get_template(template).render(values)


def state_class(state: str) -> str:
    """Return the CSS class for a state: run, good, bad, wait or off."""
    return _STATE_CLASSES.get(state.removeprefix("JOB_STATE_").upper(), "off")


def readable(state: str) -> str:
    """Return the readable form of a state or another constant, such as "Running" for JOB_STATE_RUNNING."""
    return state.removeprefix("JOB_STATE_").replace("_", " ").capitalize()


def clean(text: object) -> str:
    """Return a text without terminal sequences. Control characters, including bidirectional ones, become
    U+FFFD."""
    return _UNPRINTABLE.sub("\ufffd", _SEQUENCES.sub("", str(text)).replace("\r\n", "\n"))


def color_pieces(text: str) -> list[tuple[str, str]]:
    """Return the clean pieces of a line with their classes (see `pieces`), or [] for a line without
    styles."""
    if "\x1b" not in text:
        return []
    return [(clean(stretch), classes) for stretch, classes in pieces(text)]


def epoch(text: str) -> float:
    """Convert a record's time to seconds since 1970; "" becomes 0."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def nanos(text: str) -> int:
    """Convert a record's time to nanoseconds since 1970. Raises ValueError for ""."""
    seconds, _, fraction = text.rstrip("Z").partition(".")
    return int(epoch(f"{seconds}Z")) * 10**9 + int(f"{fraction or '0':0<9}"[:9])


def bytes_text(count: float | None) -> str:
    """Return a number of bytes as text, such as "3.2 GiB", or "" for None."""
    if count is None:
        return ""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def seconds_text(seconds: float) -> str:
    """Return a duration in its two largest units, such as "1m 20s"."""
    rounded = max(0, round(seconds))
    if rounded < 10:
        return f"{max(0.0, seconds):.1f}s"
    for unit, size, below, small in (("d", 86400, 3600, "h"), ("h", 3600, 60, "m"), ("m", 60, 1, "s")):
        if rounded >= size:
            return f"{rounded // size}{unit} {rounded % size // below:02d}{small}"
    return f"{rounded}s"


def number_text(value: object) -> str:
    """Return a number as text with up to six significant digits, or "–" for None. Integers have thousands
    separators."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def spark(values: Sequence[float | str]) -> str:
    """Return the SVG points of a line that is 100 units wide and 20 units high. Return "" for fewer than two
    numbers."""
    numbers = [value for value in values if isinstance(value, float | int)]
    if len(numbers) < 2:
        return ""
    # Halve the values, because the difference of two doubles may overflow.
    low, high = min(numbers) / 2, max(numbers) / 2
    places = [(value / 2 - low) / (high - low) if high > low else 0.5 for value in numbers]
    step = 100 / (len(numbers) - 1)
    return " ".join(f"{at * step:.1f},{19 - 18 * place:.1f}" for at, place in enumerate(places))


def curve_data(
    lines: Mapping[str, Mapping[float, float | str]],
    label: str,
    marks: Sequence[float] = (),
    edges: Collection[str] = (),
) -> str:
    """Return JSON for `charts.js` with the values of each line by horizontal position. Values that are not
    finite numbers become gaps.

    `label`: unit of the positions. `marks`: positions of vertical lines. `edges`: names of lines that are
    edges of the band around the preceding line.
    """
    at = sorted({place for values in lines.values() for place in values})
    columns = {name: [values.get(place) for place in at] for name, values in lines.items()}
    drawn = [
        [name, [None if isinstance(v, str) else v for v in c], *(["edge"] if name in edges else ())]
        for name, c in columns.items()
    ]
    return json.dumps({"at": at, "lines": drawn, "label": label} | ({"marks": marks} if marks else {}))


_FAR: Final = math.log(50)


def fits_log(low: float, high: float) -> bool:
    """Return whether an axis from `low` to `high` should be logarithmic: `low` is positive, and `high` is at
    least 50 times `low`."""
    return low > 0 and math.log(high) - math.log(low) >= _FAR


def objective_data(values: Mapping[int, float], name: str, is_maximized: bool | None) -> str:
    """Return JSON for `charts.js` with the objective and the best value so far, by trial number. Return "" if
    no trial has a value."""
    if not values:
        return ""
    best = list(accumulate(values.values(), max if is_maximized else min))
    lines = [[name, [*values.values()], "points"], ["best so far", best, "steps"]]
    is_log = fits_log(min(values.values()), max(values.values()))
    return json.dumps({"at": [*values], "lines": lines, "label": "Trial", "log": is_log})


_SGR: Final = re.compile("\x1b\\[([0-9;:]{0,100})m")


_ON: Final = {1: "bold", 2: "dim", 3: "italic", 4: "under", 7: "inverse", 9: "strike"}
_OFF: Final = {22: {"bold", "dim"}, 23: {"italic"}, 24: {"under"}, 27: {"inverse"}, 29: {"strike"}}


def pieces(text: str) -> list[tuple[str, str]]:
    """Return (text, classes) for each piece of a text, in order, or [] for a text without colours and styles.

    Other terminal sequences remain in the pieces. Classes are the names in `_ON`, `ink-N` for the terminal
    colour N (0 to 7) of the text, and `paper-N` for the colour of its background.
    """
    parts = _SGR.split(text)
    if len(parts) == 1:
        return []
    classes, spans = frozenset[str](), [(parts[0], "")]
    for codes, stretch in zip(parts[1::2], parts[2::2], strict=True):
        classes = _apply_codes(classes, codes)
        spans.append((stretch, " ".join(sorted(classes))))
    return [piece for piece in spans if piece[0]]


def _apply_codes(classes: frozenset[str], codes: str) -> frozenset[str]:
    numbers = iter(int(code[:4] or 0) for code in codes.replace(":", ";").split(";"))
    for number in numbers:
        if number == 0:
            classes = frozenset()
        elif number in _ON:
            classes |= {_ON[number]}
        elif number in _OFF:
            classes -= _OFF[number]
        elif 30 <= number < 50 or 90 <= number < 108:
            kind, colour = "ink" if number // 10 in (3, 9) else "paper", number % 10
            chosen = _read_extended_colour(numbers) if colour == 8 else colour if colour < 8 else None
            classes = frozenset(name for name in classes if not name.startswith(kind))
            if chosen is not None:
                classes |= {f"{kind}-{chosen}"}
    return classes


def _read_extended_colour(numbers: Iterator[int]) -> int | None:
    """Read the colour after code 38 or 48: `5;N` of 256 colours, or `2;R;G;B`. Return the most similar of the
    first eight colours, which are readable on light and dark pages. Return None for a grey."""
    kind = next(numbers, 0)
    values = [next(numbers, 0) for _ in range({5: 1, 2: 3}.get(kind, 0))]
    if kind == 5 and values[0] < 16:
        return values[0] % 8
    if kind == 5 and values[0] < 232:
        sixths = [(values[0] - 16) // size % 6 for size in (36, 6, 1)]
        values = [sixth and 55 + 40 * sixth for sixth in sixths]
    if len(values) < 3 or max(values) - min(values) < 51:
        return None
    middle = (max(values) + min(values)) / 2
    return sum((value > middle) << place for place, value in enumerate(values))
