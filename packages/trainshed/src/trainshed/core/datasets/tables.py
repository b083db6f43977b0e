"""The rows of a table in CSV files, each with its split (facts/datasets#splits)."""

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from trainshed.core.datasets.assignment import Places, bounds, labelled, names
from trainshed.core.datasets.lines import BadData, Record, records
from trainshed.core.datasets.plans import SPLITS, Split, SplitMethod, SplitRule

Blocks = Callable[[], Iterable[bytes]]
"""Reads a file from its beginning each time it is called."""


class TableFile(Struct, frozen=True):
    """One CSV file."""

    uri: str
    blocks: Blocks


class Table:
    """CSV files with one header: the first line of the first file. Any other file may repeat it or begin with
    a row."""

    def __init__(self, files: Iterable[TableFile]) -> None:
        """Read the beginning of the first file. Raise BadData if it is no table."""
        self._files = tuple(files)
        first = next(self._rows_of(self._files[0]), None)
        if first is None:
            raise BadData(
                f"{self._files[0].uri} is empty; a table begins with the names of its columns."
            )
        if b"\r" in first.raw and b'"' not in first.raw:
            raise BadData(
                f"{self._files[0].uri}: its lines end with carriage returns alone; let them "
                "end with line feeds."
            )
        #: The header as it is written into each file.
        self.header = first.raw
        self.columns = first.fields

    def position(self, column: str) -> int:
        """Return the position of a column. Raise BadData if there is none."""
        if column not in self.columns:
            raise BadData(
                f"{self._files[0].uri} has no column {column!r}; it has {names(self.columns)}."
            )
        return self.columns.index(column)

    def rows(self) -> Iterator[tuple[TableFile, Record]]:
        """Yield all rows, without headers. Raise BadData for a row that does not fit the header."""
        width = len(self.columns)
        for file in self._files:
            for record in self._rows_of(file):
                # Not read through properties: this is done for each of millions of rows.
                row, raw, _, quoted = record
                count = raw.count(b",") + 1 if quoted is None else len(quoted)
                if row == 1 and self._is_header(file, record):
                    continue
                if count != width:
                    raise BadData(
                        f"{file.uri}, row {record.row} (line {record.line}): it has {count} "
                        f"field{'s' * (count != 1)}, and the header has {width}."
                    )
                yield file, record

    def _is_header(self, file: TableFile, record: Record) -> bool:
        if record.raw == self.header:
            return True
        if file is self._files[0]:
            return True
        fields = record.fields
        if fields != self.columns and sorted(fields) == sorted(self.columns):
            raise BadData(
                f"{file.uri}: its columns stand in another order than those of {self._files[0].uri}; write "
                "all files with one header."
            )
        return fields == self.columns

    def _rows_of(self, file: TableFile) -> Iterator[Record]:
        return records(file.blocks(), file.uri)


def assigned(table: Table, rule: SplitRule, dataset: str) -> Iterator[tuple[bytes, Split | None]]:
    """Yield each row with its split; None: it is ignored. Raise BadData for files that are no such
    table."""
    match rule.method:
        case SplitMethod.PREDEFINED:
            at = table.position(rule.key)
            for _, record in table.rows():
                yield record.raw, labelled(record.fields[at])
        case _:
            # Local names, since it takes time to look up the members of an enum.
            is_training, is_validation, is_test = SPLITS
            validation, test = bounds(rule.fractions)
            last, places = None, Places(dataset, "")
            for file, record in table.rows():
                if file is not last:
                    last, places = file, Places(dataset, file.uri)
                word = places.word(record[0])
                if word < validation:
                    yield record[1], is_training
                else:
                    yield record[1], is_validation if word < test else is_test
