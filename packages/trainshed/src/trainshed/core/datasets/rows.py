"""Assigns each row of a dataset to a split: rows of a table in CSV files, and items of other datasets.

JSON lines of items stay unchanged, and CSV lines of items become JSON (facts/datasets#formats). A row always
gets the same split. If the row does not contain its split, a hash of the dataset and the row's position
determines it (facts/datasets#splits).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec import Struct

from trainshed.core.datasets.lines import BadData, Record, format_row, lines, records
from trainshed.core.datasets.plans import SPLITS, Split, SplitMethod, SplitRule
from trainshed.core.datasets.records import FORMATS, DataFiles, DatasetKind, ImportFormat

Blocks = Callable[[], Iterable[bytes]]
"""A function that reads a file. Each call returns the blocks of the whole file, from its beginning."""


class TableFile(Struct, frozen=True):
    """One CSV file of a table."""

    uri: str
    blocks: Blocks


class Table:
    """CSV files with one header, which is the first line of the first file. Other files may repeat the header
    or begin with a row."""

    def __init__(self, files: Iterable[TableFile]) -> None:
        """Read the header from the first file. Raise BadData if the file is not a table."""
        self._files = tuple(files)
        first = next(self._rows_of(self._files[0]), None)
        if first is None:
            raise BadData(
                f"{self._files[0].uri} is empty. Write the names of the columns into the first line."
            )
        self.columns = first.fields

    def position(self, column: str) -> int:
        """Return the position of a column. Raise BadData if the table has no such column."""
        if column not in self.columns:
            raise BadData(
                f"{self._files[0].uri} has no column {column!r}. Use one of its columns: "
                f"{format_names(self.columns)}."
            )
        return self.columns.index(column)

    def rows(self) -> Iterator[tuple[TableFile, Record]]:
        """Yield all rows, without headers. Raise BadData for a row whose length differs from the header."""
        width = len(self.columns)
        for file in self._files:
            for record in self._rows_of(file):
                # Local variables instead of properties, because this loop runs for millions of rows.
                row, line, fields = record
                if row == 1 and self._is_header(file, fields):
                    continue
                if len(fields) != width:
                    raise BadData(
                        f"{file.uri}, row {row} (line {line}): the row has {len(fields)} "
                        f"field{'s' * (len(fields) != 1)}, but the header has {width}."
                    )
                yield file, record

    def _is_header(self, file: TableFile, fields: Sequence[str]) -> bool:
        if fields != self.columns and sorted(fields) == sorted(self.columns):
            raise BadData(
                f"{file.uri}: the order of its columns differs from {self._files[0].uri}; use "
                "the same header in all files."
            )
        return fields == self.columns

    def _rows_of(self, file: TableFile) -> Iterator[Record]:
        return records(file.blocks(), file.uri)


def split_table(table: Table, rule: SplitRule, dataset: str) -> Iterator[tuple[bytes, Split | None]]:
    """Yield each row of a table with its split. None means that the row is ignored. Raise BadData for invalid
    files."""
    if rule.method is SplitMethod.PREDEFINED:
        at = table.position(rule.key)
        for _, record in table.rows():
            yield format_row(record.fields), parse_split(record.fields[at])
        return
    ends = bounds(rule.fractions)
    for file, (row, _, fields) in table.rows():
        yield format_row(fields), split_at(row_hash(dataset, file.uri, row), ends)


_WHOLE: Final = 1 << 64


def row_hash(dataset: str, content: str, row: int = 0) -> int:
    """Return a whole number below 2**64 for a row of a file, or for an item. The numbers are evenly
    distributed, and the same row always gets the same number."""
    place = f"{dataset}\0{content}\0{row}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(place, digest_size=8).digest())


def split_at(number: int, ends: tuple[int, int]) -> Split:
    """Return the split of a row or item. `number`: its row hash. `ends`: the result of `bounds`."""
    return SPLITS[(number >= ends[0]) + (number >= ends[1])]


def bounds(fractions: tuple[float, float, float]) -> tuple[int, int]:
    """Return the smallest row hash of the validation split, and the smallest row hash of the test split."""
    training, validation, test = fractions
    first = round(training * _WHOLE) if validation or test else _WHOLE
    return first, round((training + validation) * _WHOLE) if test else _WHOLE


_SAID: Final = {
    "training": Split.TRAINING,
    "train": Split.TRAINING,
    "validation": Split.VALIDATION,
    "validate": Split.VALIDATION,
    "test": Split.TEST,
}


def parse_split(text: str) -> Split | None:
    """Return the split that a column, an ML_USE or a label specifies, or None if the text is not the name of
    a split."""
    return _SAID.get(text.strip().lower())


def format_names(columns: Iterable[str]) -> str:
    """Return the names of columns as a list for an error message: the first 20 names, and the number of
    further names."""
    shown = list(columns)
    more = f" and {len(shown) - 20} more" if len(shown) > 20 else ""
    # Replace bytes that are not valid UTF-8 by `?`, because a message cannot contain them.
    return ", ".join(shown[:20]).encode(errors="replace").decode() + more


ML_USE: Final = "aiplatform.googleapis.com/ml_use"
_LABELS: Final = "dataItemResourceLabels"
_LABEL: Final = "classificationAnnotation"
_LABEL_LIST: Final = "classificationAnnotations"
_BOXES: Final = "boundingBoxAnnotations"
_USES: Final = ("", "TRAINING", "TRAIN", "VALIDATION", "VALIDATE", "TEST", "UNASSIGNED")
_CONTENT: Final = {DatasetKind.IMAGE: ("imageGcsUri",), DatasetKind.TEXT: ("textContent", "textGcsUri")}
_BOX: Final = 8
"""Number of fields of a bounding box: x and y of four corners. The second and the fourth corner may be
omitted."""


class ItemFile(Struct, frozen=True):
    """One imported file."""

    uri: str
    files: DataFiles
    blocks: Blocks

    @property
    def format(self) -> ImportFormat:
        return FORMATS[self.files.schema_uri]

    @property
    def is_csv(self) -> bool:
        return self.uri.lower().endswith(".csv")


class Item(Struct, frozen=True):
    """One item in the form for programs."""

    raw: bytes
    #: The text, or the URI of the image or text. All items with the same content get the same split.
    content: str
    labels: Mapping[str, str]


def items(file: ItemFile) -> Iterator[Item]:
    """Yield the items of a file. Raise BadData if the file does not have the format of its import."""
    parsed = _of_csv(file) if file.is_csv else _of_json(file)
    own = dict(file.files.labels)
    for read, raw in parsed:
        public = _complete_item(file.format, read)
        labels: dict[str, str] = {**own, **(public.get(_LABELS) or {})}
        if raw is not None and not own and public is read:
            line = raw
        else:
            whole = {**public, _LABELS: labels} if own else public
            # Bytes of a CSV file that are not UTF-8 are copied unchanged. Unpaired surrogates of JSON are
            # escaped.
            text = json.dumps(whole, ensure_ascii=not file.is_csv)
            line = text.encode("utf-8", "surrogateescape")
        content = next((str(read[name]) for name in _CONTENT[file.format.kind] if read.get(name)), "")
        yield Item(line, content, labels)


def _complete_item(form: ImportFormat, item: dict[str, Any]) -> dict[str, Any]:
    """Return an item with the fields of both common forms: a single label as a value and also as a list, and
    the URI of a text in both fields for texts. Return the item itself if no field is missing."""
    more: dict[str, Any] = {}
    label, labels = item.get(_LABEL), item.get(_LABEL_LIST)
    if form.name.endswith("_classification_single_label"):
        if label and labels is None:
            more[_LABEL_LIST] = [label]
        elif label is None and isinstance(labels, list) and len(cast("list[Any]", labels)) == 1:
            more[_LABEL] = labels[0]
    if form.kind is DatasetKind.TEXT and item.get("textGcsUri") and not item.get("textContent"):
        more["textContent"] = item["textGcsUri"]
    return {**item, **more} if more else item


def split_items(files: Iterable[ItemFile], rule: SplitRule, dataset: str) -> Iterator[tuple[bytes, Split]]:
    """Yield each item with its split. An item's ML use has priority over the fractions."""
    ends = bounds(rule.fractions)
    for file in files:
        for item in items(file):
            split = parse_split(item.labels.get(ML_USE, ""))
            yield item.raw, split or split_at(row_hash(dataset, item.content), ends)


def _of_json(file: ItemFile) -> Iterator[tuple[dict[str, Any], bytes | None]]:
    stripped = (line.strip() for line in lines(file.blocks(), file.uri))
    for number, raw in enumerate(stripped, 1):
        if not raw:
            continue
        place = f"{file.uri}, line {number}"
        try:
            public: Any = json.loads(raw)
        except (ValueError, RecursionError) as failure:
            raise BadData(f"{place}: the line is not valid JSON: {failure}.") from None
        wanted = _CONTENT[file.format.kind]
        item = cast("dict[str, Any]", public) if isinstance(public, dict) else {}
        if not any(isinstance(item.get(name), str) for name in wanted):
            raise BadData(f"{place}: the line must be a JSON object with the field {' or '.join(wanted)}.")
        try:
            msgspec.convert(item.get(_LABELS) or {}, dict[str, str])
        except msgspec.ValidationError:
            raise BadData(f"{place}: {_LABELS} must be an object whose values are strings.") from None
        yield item, raw


def _of_csv(file: ItemFile) -> Iterator[tuple[dict[str, Any], bytes | None]]:
    """Yield an item for each image or text. Successive lines about one image become one item."""
    item: dict[str, Any] = {}
    last = ""
    for record in records(file.blocks(), file.uri):
        place = f"{file.uri}, row {record.row} (line {record.line})"
        use, content, rest = _parts(file, record, place)
        public = _public(file.format, content, rest, place)
        if use and use != "UNASSIGNED":
            split = parse_split(use)
            public[_LABELS] = {ML_USE: split.value if split else use.lower()}
        if item and content == last and _join_boxes(item, public):
            continue
        if item:
            yield item, None
        item, last = public, content
    if item:
        yield item, None


def _parts(file: ItemFile, record: Record, place: str) -> tuple[str, str, Sequence[str]]:
    """Return the ML use ("" if missing), the content, and the remaining fields of a CSV line."""
    fields = [field.strip() for field in record.fields]
    use = ""
    if fields[0].upper() in _USES and len(fields) > 1:
        use, fields = fields[0].upper(), fields[1:]
    content = fields[0]
    if file.format.kind is DatasetKind.TEXT:
        if not content:
            raise BadData(f"{place}: the row contains no text.")
    elif not content.startswith("gs://"):
        raise BadData(f"{place}: {content[:100]!r} is not the name of a file. Write gs://BUCKET/PATH.")
    return use, content, [*fields[1:]]


def _public(form: ImportFormat, content: str, rest: Sequence[str], place: str) -> dict[str, Any]:
    if form.kind is DatasetKind.TEXT:
        name = "textGcsUri" if content.startswith("gs://") else "textContent"
    else:
        name = _CONTENT[form.kind][0]
    public: dict[str, Any] = {name: content}
    splits = [text for text in rest if text]
    if not splits:
        return public
    match form.name:
        case "image_classification_single_label" | "text_classification_single_label":
            if len(splits) > 1:
                raise BadData(
                    f"{place}: the row has {len(splits)} labels. Write only one label for each item."
                )
            public[_LABEL] = {"displayName": splits[0]}
        case "image_classification_multi_label" | "text_classification_multi_label":
            public[_LABEL_LIST] = [{"displayName": label} for label in splits]
        case "image_bounding_box":
            public[_BOXES] = [_box(rest, place)]
        case _:
            raise BadData(
                f"{place}: CSV files do not support segmentations; write the image and its "
                "segmentationAnnotation as a line of a .jsonl file, and import that file."
            )
    return public


def _box(rest: Sequence[str], place: str) -> dict[str, Any]:
    label, *corners = rest
    try:
        numbers = [float(text) if text else None for text in corners]
    except ValueError:
        raise BadData(f"{place}: the corners of a box must be numbers from 0 to 1.") from None
    xs = [x for x in numbers[0::2] if x is not None]
    ys = [y for y in numbers[1::2] if y is not None]
    if len(numbers) != _BOX or len(xs) < 2 or len(ys) < 2:
        raise BadData(
            f"{place}: a box is missing or incomplete. Write LABEL,X_MIN,Y_MIN,,,X_MAX,Y_MAX,, or the label "
            "and the coordinates of all four corners."
        )
    return {"displayName": label, "xMin": min(xs), "yMin": min(ys), "xMax": max(xs), "yMax": max(ys)}


def _join_boxes(item: dict[str, Any], more: dict[str, Any]) -> bool:
    """Add the boxes of the next line (`more`) to an item. Return False, and change nothing, unless both have
    boxes and the same labels, including the ML use."""
    if _BOXES in item and _BOXES in more and item.get(_LABELS) == more.get(_LABELS):
        item[_BOXES] += more[_BOXES]
        return True
    return False
