"""The types of settings, and the conversion of values to them.

Bounds and choices are part of a type (`Port`, `Literal[...]`), and `msgspec.convert` enforces them. A
`Checked` function enforces other rules.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs

from trainshed.access.issuers import Issuer
from trainshed.api.calls.parents import ProjectName
from trainshed.buckets.setup import BucketTable
from trainshed.core.catalog.machines import accelerator_types, machine_types
from trainshed.core.catalog.regions import regions
from trainshed.core.errors import InvalidRequest, closest
from trainshed.core.failure.table import table_with
from trainshed.core.names import Api
from trainshed.engines import registry
from trainshed.engines.tables import wrong_fields
from trainshed.httpd.hosts import parse_list
from trainshed.notifying.targets import NotifyTable, mail_server
from trainshed.runtimes.catalog import MappedImage

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_.-]+")
_AGES = {"h": 3600 * 10**9, "d": 86400 * 10**9, "w": 7 * 86400 * 10**9}
_SIZES = {"MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple[dict[str, Any], ...]: "a list of tables",
}
_FLAGS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
"""Words for booleans in addition to those that msgspec accepts."""
_MAX_NUMBER = 1e308
"""The upper bound of numbers, which excludes infinity."""


class Checked(Struct, frozen=True):
    """Annotation of a type: for an invalid value, `check` raises ValueError with the allowed values."""

    check: Callable[[Any], object]


class Tables(Struct, frozen=True):
    """Annotation of a type: the TOML file contains the setting as tables `[[name]]`."""

    #: The type of a table. Its method `faults` yields errors in the values, in the form `field: text`.
    type: type[Any]
    #: The fields whose values must be unique among the tables.
    unique: tuple[str, ...] = ("name",)


def convert(name: str, kind: Any, value: Any) -> Any:
    """Convert the value of the setting `name` to its type. Raises ValueError with the allowed values."""
    if NoneType in get_args(kind):
        if value == "":  # An empty text means that the setting is not set.
            return None
        kind = get_args(kind)[0]
    base, *extras = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    for extra in extras:
        if isinstance(extra, Tables):
            return _read(name, value, extra)
    raw = str(value) if isinstance(value, Path) else value
    if base is bool:
        raw = _FLAGS.get(str(value).lower(), str(value).lower())
    elif base in _WORDS and isinstance(value, str):
        raw = value.strip()
    try:
        converted = msgspec.convert(raw, str if base is Path else kind, strict=False)
    except msgspec.ValidationError:
        raise ValueError(f"{value!r} is not {_allowed_values(base, extras, raw)}") from None
    if base is Path:
        return _directory(converted)
    for extra in extras:
        if isinstance(extra, Checked):
            extra.check(converted)
    return converted


def _directory(text: str) -> Path:
    if not text:
        raise ValueError(
            "the value is empty, but must be a directory; for the default directory, omit the setting"
        )
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ValueError(
            f"{text!r} cannot be expanded: the user after ~ has no home directory; write an absolute path"
        ) from None


def _allowed_values(base: Any, extras: list[Any], value: Any) -> str:
    if get_origin(base) is Literal and isinstance(value, str):
        choices = get_args(base)
        return f"one of {', '.join(choices)}.{closest(value, choices)}"
    try:
        msgspec.convert(value, base, strict=False)
    except msgspec.ValidationError:
        return _WORDS.get(base, "a text")
    (meta,) = (extra for extra in extras if isinstance(extra, msgspec.Meta))
    return meta.description or f"{meta.ge} or more"


def _read(name: str, value: Any, tables: Tables) -> tuple[Any, ...]:
    """Return the tables of a setting. Raises ValueError with one line per error. A table's values are checked
    only if its fields have the right types."""
    wrong: list[str] = []
    made: list[Any] = []
    try:
        rows = msgspec.convert(value, tuple[dict[str, Any], ...])
    except msgspec.ValidationError:
        raise ValueError(f"the entries of {name} are not tables; write each as [[{name}]]") from None
    for number, row in enumerate(rows):
        at = f"{name}[{number}]"
        if faults := wrong_fields(tables.type, row, f"{at}."):
            wrong += faults
            continue
        optional = {field.name for field in structs.fields(tables.type) if field.default is None}
        # An empty text means that the field is not set.
        fields = {key: entry for key, entry in row.items() if entry != "" or key not in optional}
        try:
            table = msgspec.convert(fields, tables.type)
        except msgspec.ValidationError as missing:
            wrong.append(f"{at}: {missing}")
            continue
        wrong += [f"{at}.{fault}" for fault in table.faults()]
        made.append(table)
    for field in tables.unique:
        counts = Counter(getattr(table, field) for table in made)
        wrong += [f"{name}: two tables have the {field} {text!r}" for text in counts if counts[text] > 1]
    if wrong:
        raise ValueError("\n".join(wrong))
    return tuple(made)


def accelerators_of(text: str) -> tuple[tuple[str, int], ...]:
    """Convert a text such as `NVIDIA_TESLA_T4=2,NVIDIA_L4=1` to pairs. Raises ValueError."""
    return tuple(
        (kind, int(count))
        for kind, count in _pairs(text, accelerator_types(Api.VERTEX), "[0-9]*[1-9][0-9]*", "count")
    )


def prices_of(text: str) -> dict[str, float]:
    """Convert a text such as `n1-standard-8=0.38,NVIDIA_L4=0.7` to a mapping. Raises ValueError."""
    types = [*machine_types(), *accelerator_types(Api.VERTEX)]
    pairs = _pairs(text, types, r"[0-9]+(\.[0-9]*)?|\.[0-9]+", "amount")
    return {kind: float(amount) for kind, amount in pairs}


def _pairs(text: str, types: Collection[str], number: str, what: str) -> Iterator[tuple[str, str]]:
    """Yield the pairs (type, number) of a text. `number`: the pattern of the number. Raises ValueError."""
    for part in filter(None, text.split(",")):
        kind, _, value = part.strip().partition("=")
        if kind not in types:
            raise ValueError(
                f"{kind!r} is not a known type; `trainshed list machine-types` lists the types."
                f"{closest(kind, types)}"
            )
        if not re.fullmatch(number, value):
            raise ValueError(f"{part!r} is not of the form TYPE={what.upper()}")
        yield kind, value


def _check_engine(name: str) -> None:
    if name != "local" and name not in (known := registry.names()):
        raise ValueError(f"{name!r} is not one of {', '.join(known)}.{closest(name, known)}")


def _check_region(region: str) -> None:
    if region not in (known := regions(Api.VERTEX)):
        raise ValueError(f"{region!r} is not one of {', '.join(known)}.{closest(region, known)}")


def _check_paths(text: str) -> None:
    missing = [path for path in filter(None, text.split(":")) if not Path(path).is_dir()]
    if missing:
        raise ValueError(f"{', '.join(missing)} is not a directory; write absolute paths of directories")


def _check_web_url(url: str) -> None:
    parts = urlsplit(url)
    is_http = url.startswith(("http://", "https://"))
    if not is_http or not parts.hostname or parts.port == 0:
        raise ValueError(f"{url!r} is not the address of a web page, such as https://training.example.org")


def _check_hosts(text: str) -> None:
    wrong = [name for name in parse_list(text) if not _HOST.fullmatch(name)]
    if wrong:
        raise ValueError(
            f"{', '.join(wrong)} is not a host name; write a name without scheme and port, such as "
            "training.example.org, *.example.org for its subdomains, or * for any"
        )


def _check_project(project: str) -> None:
    try:
        ProjectName.parse(f"projects/{project}", field="project")
    except InvalidRequest as refused:
        raise ValueError("; ".join(v.description for v in refused.violations)) from None


def parse_age(text: str) -> int:
    """Convert `12h`, `30d` or `4w` to nanoseconds. Raises ValueError for other texts."""
    # Allow at most four digits, because the store cannot compare longer ages.
    return _amount(text, _AGES, 4, "age such as 12h, 30d or 4w")


def parse_size(text: str) -> int:
    """Convert `500MB`, `50GB` or `2TiB` to bytes. Raises ValueError for other texts."""
    return _amount(text, _SIZES, 9, "size such as 500MB, 50GB or 2TiB")


def _amount(text: str, units: Mapping[str, int], digits: int, what: str) -> int:
    match = re.fullmatch(rf"([0-9]{{1,{digits}}})({'|'.join(units)})", text)
    if match is None or not int(match[1]):
        raise ValueError(f"{text!r} is not a valid {what}")
    return int(match[1]) * units[match[2]]


Port = Annotated[int, msgspec.Meta(ge=0, le=65535, description="a port (0 = any free port, up to 65535)")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Amount = Annotated[float, msgspec.Meta(ge=0, le=_MAX_NUMBER)]
Days = Annotated[float, msgspec.Meta(ge=0.01, le=400, description="a number of days, from 0.01 to 400")]
Engine = Annotated[str, Checked(_check_engine)]
Capacity = Literal["relaxed", "strict"]
Isolation = Literal["own-user", "root", "user", "session"]
ContainerTool = Literal["auto", "podman", "docker", "none"]
Region = Annotated[str, Checked(_check_region)]
Project = Annotated[str, Checked(_check_project)]
Directories = Annotated[str, Checked(_check_paths)]
NodeAccelerators = Annotated[str, Checked(accelerators_of)]
PriceList = Annotated[str, Checked(prices_of)]
Age = Annotated[str, Checked(parse_age)]
Size = Annotated[str, Checked(parse_size)]
WebUrl = Annotated[str, Checked(_check_web_url)]
HostNames = Annotated[str, Checked(_check_hosts)]
FailureRules = Annotated[tuple[dict[str, Any], ...], Checked(table_with)]
MappedImages = Annotated[tuple[MappedImage, ...], Tables(MappedImage, ("pattern",))]
NotifyTables = Annotated[tuple[NotifyTable, ...], Tables(NotifyTable)]
IssuerTables = Annotated[tuple[Issuer, ...], Tables(Issuer, ("name", "issuer"))]
MailServer = Annotated[str, Checked(mail_server)]
BucketTables = Annotated[tuple[BucketTable, ...], Tables(BucketTable)]
