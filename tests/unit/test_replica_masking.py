"""Tests that secrets are masked in a program's log (spec/invariants#secrets)."""

import base64
import json
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.test_replica_segments import read
from trainshed.replica import protocol
from trainshed.replica.observe import metrics
from trainshed.replica.observe.growing_files import DiskRetries
from trainshed.replica.observe.masking import Mask
from trainshed.replica.observe.segments import LINE_BYTES, Segments, Stream
from trainshed.replica.supervisor import program
from trainshed.replica.system.loop import Loop

AWKWARD = 's3cr\'et "x"/y+é \\ z'
KEY = "-----BEGIN KEY-----\nMIIE\n0123456789abcdef\nxyz\n-----END KEY-----\n"


def log_lines(directory: Path, mask: Mask, *pieces: bytes) -> str:
    """Write the pieces to a log. Return its text and the record's tail."""
    log = Segments(str(directory), mask)
    stream = Stream(log, "o")
    for piece in pieces:
        stream.feed(piece)
    stream.close()
    _, tail = log.seal()
    return "\n".join([*(str(line["m"]) for line in read(directory)), tail])


@pytest.mark.parametrize(
    "shown",
    [
        AWKWARD,
        json.dumps({"message": AWKWARD}),
        json.dumps({"message": AWKWARD}, ensure_ascii=False),
        repr([AWKWARD]),
        urllib.parse.quote(AWKWARD),
        urllib.parse.quote(AWKWARD, safe=""),
        urllib.parse.urlencode({"q": AWKWARD}),
    ],
)
def test_secret_is_masked_in_the_forms_that_programs_print(shown: str) -> None:
    masked = Mask((AWKWARD,)).text(f"before {shown} after")
    assert masked.startswith("before ") and masked.endswith(" after")
    assert "***" in masked and "cr" not in masked


@given(st.binary(max_size=7), st.text(min_size=8).map(str.encode), st.binary(max_size=7))
def test_secret_is_masked_inside_a_longer_base64_text(before: bytes, secret: bytes, after: bytes) -> None:
    """`Authorization: Basic` encodes a name and a colon before the secret."""
    mask = Mask((secret.decode(),))
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        left = mask.apply(encode(before + secret + after)).replace(b"***", b"")
        # Only characters that also encode surrounding bytes.
        assert len(left) <= -(-(len(before) * 8) // 6) + -(-(len(after) * 8) // 6) + 4


@given(st.lists(st.text("ab", min_size=4, max_size=7), min_size=1, max_size=4), st.text("abc", max_size=60))
def test_overlapping_secrets_are_masked_completely(secrets: list[str], text: str) -> None:
    covered = [False] * len(text)
    for secret in secrets:
        for at in range(len(text)):
            if text.startswith(secret, at):
                covered[at : at + len(secret)] = [True] * len(secret)
    kept = "".join(c for c, is_covered in zip(text, covered, strict=True) if not is_covered)
    assert Mask(tuple(secrets)).text(text).replace("*", "") == kept


def test_each_line_of_a_multiline_secret_is_masked_except_short_lines() -> None:
    mask = Mask((KEY,))
    assert mask.text("  0123456789abcdef,") == "  ***,"
    assert mask.text(KEY) == "***\n***\n***\nxyz\n***\n", "lines stay lines"
    assert mask.text(json.dumps(KEY)) == '"***"'


@pytest.mark.parametrize("cut", range(len("the s3cret is out")))
def test_secret_split_across_writes_is_masked(tmp_path: Path, cut: int) -> None:
    text = b"the s3cret is out"
    mask = Mask(("s3cret",))
    assert log_lines(tmp_path, mask, text[:cut], text[cut:] + b"\n") == "the *** is out\nthe *** is out"


@pytest.mark.parametrize("before", [LINE_BYTES - n for n in (0, 1, 5, 19, 20, 21)])
@pytest.mark.parametrize("step", [7, 1000, LINE_BYTES])
def test_secret_that_crosses_a_split_of_a_long_line_is_masked(tmp_path: Path, before: int, step: int) -> None:
    """Lines are split into parts of 64 KiB. Secrets are masked before the split, even if a secret arrives in
    several writes."""
    secret = b"0123456789abcdefghij"
    around = b"x" * before + secret + b"y" * 50
    near = [around[: before - 20], *(around[at : at + step] for at in range(before - 20, len(around), step))]
    rest = b"y" * (3 * LINE_BYTES) + secret + b"\nend\n"
    far = [rest[at : at + LINE_BYTES] for at in range(0, len(rest), LINE_BYTES)]
    text = log_lines(tmp_path, Mask((secret.decode(),)), *near, *far).replace("\n", "")
    assert text.count("x") == before and text.count("y") >= 3 * LINE_BYTES + 50
    assert text.count("***") >= 2
    assert "012345" not in text and "efghij" not in text


def test_secret_cut_off_by_the_end_of_the_log_is_masked(tmp_path: Path) -> None:
    """The program may be killed while it writes the secret."""
    secret = "0123456789abcdefghij"
    assert log_lines(tmp_path, Mask((secret,)), b"key: 0123456789abc").split("\n")[0] == "key: ***"


def test_secret_is_masked_in_trial_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The secret is masked in the name and value of a metric, and in notices about invalid lines."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / protocol.FILES / program.HYPERTUNE / metrics.PROGRAM_FILE
    file.parent.mkdir(parents=True)
    lines: list[str] = []
    events = Loop()
    taken = metrics.Metrics(
        str(tmp_path),
        1,
        events,
        log=lines.append,
        notify=lambda: None,
        retries=DiskRetries(events, lambda _: None),
        mask=Mask(("s3cret", "987654")),
    )
    reported = ['{"loss-s3cret": "0.5"}', '{"loss": "987654"}', '{"loss": 987654.25}', "s3cret"]
    file.write_text("\n".join(reported))
    taken.seal()
    written = (tmp_path / metrics.FILE).read_text()
    assert [json.loads(line)["values"] for line in written.splitlines()] == [{"loss-***": 0.5}]
    assert lines and not any("s3cret" in line or "987654" in line for line in lines)
