"""Tables split into files: assignment of rows, and form of the files (facts/datasets#splits)."""

import csv
import io
import tracemalloc
from collections.abc import Iterator

import pytest

from tests.unit.datasets_in_memory import OUT, Memory, shards, table_plan, write_files
from trainshed.core.datasets.plans import SplitMethod, SplitRule, complete_fractions
from trainshed.core.datasets.records import FORMATS, annotation_of, annotation_uri
from trainshed.datasets.port import DataRefused
from trainshed.datasets.storage import StoredObject

HEADER = b"id,text\n"


def rows(split: list[bytes]) -> list[list[str]]:
    """Return the rows in a split's files. Each file has the header."""
    records: list[list[str]] = []
    for content in split:
        header, *more = csv.reader(io.StringIO(content.decode(), newline=""))
        assert header == ["id", "text"]
        records += more
    return records


def numbered_rows(count: int) -> bytes:
    return HEADER + b"".join(b"%d,row\n" % number for number in range(count))


def all_rows(buckets: Memory) -> dict[str, list[list[str]]]:
    return {split: rows(shards(buckets, split)) for split in ("training", "validation", "test")}


def test_default_fractions_assign_every_csv_row_to_exactly_one_split() -> None:
    buckets = Memory({"gs://b/in/a.csv": numbered_rows(5_000)}, block=1_000)
    counts = write_files(table_plan(), buckets)
    by_split = all_rows(buckets)
    together = [int(row[0]) for split in by_split.values() for row in split]
    assert sorted(together) == list(range(5_000))
    assert counts.training.rows == len(by_split["training"]) == pytest.approx(4_000, rel=0.05)
    assert counts.validation.rows == len(by_split["validation"]) == pytest.approx(500, rel=0.2)
    assert counts.test.rows == len(by_split["test"]) == pytest.approx(500, rel=0.2)


def test_second_attempt_of_a_split_writes_equal_files_and_deletes_all_other_files() -> None:
    source = {"gs://b/in/a.csv": numbered_rows(300), "gs://b/in/b.csv": numbered_rows(200)}
    first = Memory(source)
    write_files(table_plan(), first, shard=256)
    second = Memory({**source, f"{OUT}/training-00999.csv": b"of an earlier try"}, block=50)
    write_files(table_plan(), second, shard=256)
    assert first.objects == second.objects
    again = Memory(first.objects)
    again.blocks = None  # type: ignore[method-assign,assignment]
    assert write_files(table_plan(), again) == write_files(table_plan(), first)


def test_dataset_split_does_not_read_the_output_of_an_earlier_attempt() -> None:
    source = {"gs://b/in/a.csv": numbered_rows(50)}
    buckets = Memory({**source, f"{OUT}/training-00000.csv": numbered_rows(7)})
    counts = write_files(table_plan("gs://b/**.csv"), buckets)
    assert counts.training.rows + counts.validation.rows + counts.test.rows == 50


def test_each_split_file_has_the_header_and_the_configured_size() -> None:
    buckets = Memory({"gs://b/in/a.csv": numbered_rows(2_000)}, block=999)
    counts = write_files(table_plan(), buckets, shard=2_000)
    assert len(counts.training.shards) > 3
    for content in shards(buckets, "training"):
        assert content.startswith(HEADER) and content.endswith(b"\n")
        assert len(content) < 2_100
    assert f"{OUT}/training-00000.csv" in counts.training.shards


@pytest.mark.parametrize("block", [1, 2, 3, 5, 64])
def test_csv_row_with_quoted_line_breaks_is_kept_together_across_read_blocks(block: int) -> None:
    content = (
        b'\xef\xbb\xbfid,text\r\n1,"a\nb"\r\n\r\n2,"he said ""no\n"", and\r\n,left"\r\n'
        b'3,\xe2\x80\xa8 plain 5" pipe\r\n4,last'
    )
    buckets = Memory({"gs://b/in/a.csv": content}, block=block)
    write_files(table_plan(rule=SplitRule(fractions=(1.0, 0.0, 0.0))), buckets)
    assert rows(shards(buckets, "training")) == [
        ["1", "a\nb"],
        ["2", 'he said "no\n", and\r\n,left'],
        ["3", '\u2028 plain 5" pipe'],
        ["4", "last"],
    ]
    assert shards(buckets, "test") == [HEADER]


def test_csv_files_after_the_first_may_repeat_or_omit_the_header() -> None:
    files = {
        "gs://b/in/a.csv": b"id,text\n1,a\n",
        "gs://b/in/b.csv": b"id,text\r\n2,b\r\n",
        "gs://b/in/c.csv": b"3,c\n",
        "gs://b/in/d.csv": b"",
    }
    buckets = Memory(files)
    write_files(table_plan(), buckets)
    ids = [row[0] for split in all_rows(buckets).values() for row in split]
    assert sorted(ids) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([b"id,text\n1,a\n2\n"], "in/0.csv, row 3 (line 3): the row has 1 field, but the header has 2"),
        (
            [b'id,text\n1,"a\n\nb"\n2,b,c\n'],
            "in/0.csv, row 3 (line 5): the row has 3 fields, but the header has 2",
        ),
        ([b"id,text\n1,a\n", b"text,id\n"], "in/1.csv: the order of its columns differs from"),
        ([b'id,text\n1,"a\n2,b\n'], "in/0.csv, row 2 (line 2): a quoted field starts"),
        ([b""], "in/0.csv is empty"),
        ([b"id,text\n"], "its files have no rows"),
        ([b"id,text\r1,a\r"], "carriage returns only"),
        ([b"\x1f\x8b\x08 zipped"], "in/0.csv is compressed"),
    ],
)
def test_error_of_an_invalid_csv_file_contains_file_name_and_row_number(
    files: list[bytes], words: str
) -> None:
    buckets = Memory({f"gs://b/in/{n}.csv": content for n, content in enumerate(files)})
    with pytest.raises(DataRefused) as refused:
        write_files(table_plan(), buckets)
    assert words in str(refused.value)
    assert f"{OUT}/manifest.json" not in buckets.objects


class EndlessMemory(Memory):
    """Buckets with infinite files. `reads` counts the blocks that were read."""

    more = b""
    read_blocks = 0

    def blocks(self, source: StoredObject) -> Iterator[bytes]:
        yield self.objects[source.uri]
        while True:
            self.read_blocks += 1
            yield self.more


@pytest.mark.parametrize(
    ("content", "end", "words"),
    [
        (b'id,text\n1,"', b"\n", "in/a.csv, row 2 (line 2): a quoted field starts"),
        (b'id,text\n1,"', b"", "in/a.csv, line 2: the line is longer than"),
        (b"id", b"", "in/a.csv, line 1: the line is longer than"),
    ],
)
def test_csv_record_without_an_end_is_rejected_before_the_whole_file_is_read(
    monkeypatch: pytest.MonkeyPatch, content: bytes, end: bytes, words: str
) -> None:
    monkeypatch.setattr("trainshed.core.datasets.lines.MAX_RECORD", 100_000)
    buckets = EndlessMemory({"gs://b/in/a.csv": content})
    buckets.more = b"x" * 1_000 + end
    with pytest.raises(DataRefused) as refused:
        write_files(table_plan(), buckets)
    assert words in str(refused.value)
    assert buckets.read_blocks < 200


def test_split_column_assigns_csv_rows_and_csv_rows_without_a_split_are_ignored() -> None:
    content = b"id,text\n1,training\n2,TEST\n3, validation\n4,\n5,other\n6,training\n"
    buckets = Memory({"gs://b/in/a.csv": content})
    rule = SplitRule(SplitMethod.PREDEFINED, key="text")
    counts = write_files(table_plan(rule=rule), buckets)
    by_split = all_rows(buckets)
    assert [row[0] for row in by_split["training"]] == ["1", "6"]
    assert [row[0] for row in by_split["validation"]] == ["3"]
    assert [row[0] for row in by_split["test"]] == ["2"]
    assert counts.ignored == 2


def test_missing_column_error_lists_the_existing_columns() -> None:
    buckets = Memory({"gs://b/in/a.csv": numbered_rows(3)})
    with pytest.raises(DataRefused, match=r"no column 'split'\. .* columns: id, text"):
        write_files(table_plan(rule=SplitRule(SplitMethod.PREDEFINED, key="split")), buckets)
    # The column's name may be invalid text, but the error must be transferable.
    odd = Memory({"gs://b/in/a.csv": "größe,text\n1,2\n".encode("latin-1")})
    with pytest.raises(DataRefused) as refused:
        write_files(table_plan(rule=SplitRule(SplitMethod.PREDEFINED, key="split")), odd)
    assert str(refused.value).encode()


def test_dataset_split_fails_if_the_split_column_contains_no_split_names() -> None:
    buckets = Memory({"gs://b/in/a.csv": numbered_rows(3)})
    rule = SplitRule(SplitMethod.PREDEFINED, key="text")
    with pytest.raises(DataRefused, match="none of its 3 rows belongs to a split"):
        write_files(table_plan(rule=rule), buckets)


def test_memory_use_of_a_dataset_split_is_independent_of_the_number_of_csv_rows() -> None:
    buckets = Memory({"gs://b/in/a.csv": numbered_rows(25_000)}, block=1 << 16)
    tracemalloc.start()
    try:
        write_files(table_plan(), buckets, shard=64 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The output files are in the memory of this test's buckets.
    assert sum(len(part) for part in shards(buckets, "training")) < peak < 3 << 20


@pytest.mark.parametrize(
    ("fractions", "whole"),
    [
        ((0.0, 0.0, 0.0), (0.8, 0.1, 0.1)),
        ((0.6, 0.0, 0.0), (0.6, 0.2, 0.2)),
        ((0.8, 0.2, 0.0), (0.8, 0.2, 0.0)),
        ((0.5, 0.3, 0.0), (0.5, 0.3, 0.2)),
        ((0.0, 0.1, 0.0), (0.8, 0.1, 0.1)),
        ((0.5, 0.2, 0.2), (0.6, 0.2, 0.2)),
        ((0.7, 0.2, 0.1 + 1e-12), (0.7, 0.2, 0.1)),
    ],
)
def test_dataset_splits_without_a_fraction_share_the_remaining_fraction(
    fractions: tuple[float, float, float], whole: tuple[float, float, float]
) -> None:
    assert complete_fractions(fractions) == pytest.approx(whole)


def test_annotation_schema_is_identified_by_the_uri_and_an_unknown_uri_gives_none() -> None:
    for form in FORMATS.values():
        assert annotation_of(annotation_uri(form.annotation)) == form.annotation
    assert annotation_of("gs://google-cloud-aiplatform/schema/dataset/annotation/x.yaml") == ""
    assert annotation_of("image_classification") == ""
