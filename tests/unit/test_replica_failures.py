"""Which storage calls that fail are told to people: many in a row, once for each cause."""

import pytest

from trainshed.core.lifecycle.notes import STORAGE_NOTES
from trainshed.replica.endpoint import storage_failures
from trainshed.replica.supervisor import sidecars

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


def answer(status: int, message: str) -> bytes:
    body = f'{{"error": {{"code": {status}, "message": "{message}", "errors": []}}}}'
    return f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


class Program:
    """Calls once a second, and what is told of it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[tuple[str, str, str]] = []
        self.failing = storage_failures.StorageFailures(self._note, lambda: self.now)

    def _note(self, name: str, severity: str, text: str) -> None:
        self.told.append((name, severity, text))

    def hears(self, *answers: bytes) -> list[str]:
        for each in answers:
            self.failing.answered(each)
            self.now += 1
        return [name for name, _, _ in self.told]


def test_the_names_are_those_that_the_timeline_knows() -> None:
    names = {
        *(storage_failures.UNTRUSTED, storage_failures.DENIED, storage_failures.NO_BUCKET),
        *(storage_failures.NOT_FOUND, storage_failures.BROKEN, storage_failures.UNREACHABLE),
    }
    assert names | {sidecars.WRITTEN_HERE} == STORAGE_NOTES


@pytest.mark.parametrize(
    ("code", "message", "name", "text"),
    [
        ("NoSuchBucket", "The specified bucket does not exist.", "NO_BUCKET", "does not exist."),
        ("NoSuchKey", "No such object: b/&lt;a&gt;&amp;", "NOT_FOUND", "No such object: b/<a>&."),
    ],
)
def test_an_error_of_the_xml_api_is_understood(
    code: str, message: str, name: str, text: str
) -> None:
    """TensorFlow reads objects by it."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    program = Program()
    told = program.hears(*[f"HTTP/1.1 404 X\r\n\r\n{body}".encode()] * 200)
    assert told == [getattr(storage_failures, name)]
    assert text in program.told[0][2]


def test_a_refusal_again_and_again_is_told_once_with_what_the_answer_says() -> None:
    program = Program()
    refused = answer(403, "Programs of project a may not read gs://b.")
    assert program.hears(refused, refused) == []
    assert program.hears(refused, refused, refused) == [storage_failures.DENIED]
    _, severity, text = program.told[0]
    assert severity == "WARNING"
    assert text.endswith("refused again and again: 403, Programs of project a may not read gs://b.")


def test_what_works_in_between_is_no_row() -> None:
    program = Program()
    refused, broken = answer(403, "no"), answer(503, "busy")
    assert program.hears(*[refused, OK, broken, refused, OK] * 5) == []
    assert program.hears(*[broken, refused] * 3) == [
        storage_failures.BROKEN,
        storage_failures.DENIED,
    ]


def test_asking_for_what_is_not_there_is_normal_for_a_while() -> None:
    program = Program()
    missing = answer(404, "No such object: b/x")
    assert program.hears(*[missing] * 9) == []
    assert program.hears(missing) == [storage_failures.NOT_FOUND]
    assert program.told[0][1] == "INFO"
    elsewhere = answer(404, "The specified bucket does not exist. (bucket: c)")
    assert program.hears(*[elsewhere] * 3)[1:] == [storage_failures.NO_BUCKET]
    assert "gcloud storage buckets create" in program.told[1][2]


def test_many_at_once_are_the_programs_to_say() -> None:
    program = Program()
    for _ in range(100):
        program.failing.answered(answer(403, "no"))
    assert program.told == []


def test_failures_that_are_far_apart_are_no_row() -> None:
    program = Program()
    for _ in range(10):
        program.hears(answer(403, "no"))
        program.now += 200
    assert program.told == []


def test_content_is_no_answer() -> None:
    program = Program()
    for content in (b"", b"HTTP/1.1", b"HTTP/1.1 abc", b"x" * 100, b"403 403 403"):
        assert program.hears(*[content] * 10) == []


def test_a_client_that_does_not_believe_us_is_told_though_others_do() -> None:
    program = Program()
    for _ in range(3):
        program.failing.handshake_failed("TLSV1_ALERT_UNKNOWN_CA")
        program.hears(OK)
    (note,) = program.told
    assert note[:2] == (storage_failures.UNTRUSTED, "WARNING")
    assert "TLSV1_ALERT_UNKNOWN_CA" in note[2]


def test_storage_that_takes_no_connection_is_told_at_once() -> None:
    program = Program()
    program.failing.unreachable(10)
    program.failing.unreachable(10)
    (note,) = program.told
    assert note[:2] == (storage_failures.UNREACHABLE, "WARNING")
