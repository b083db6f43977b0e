"""What programs, names and errors hold is text on a terminal, and in lines of logs colours."""

import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.cli.jobs.views import JobView, LineTexts
from trainshed.cli.text.colours import cleaned, coloured, one_line, plain
from trainshed.wire.trainshed_v1.timeline import LogLine

RED, NONE = "\x1b[31m", "\x1b[0m"
ANY_TEXT = st.text(st.characters(exclude_categories=[]), max_size=30) | st.lists(
    st.sampled_from(["\x1b", "[", "]0;", "31m", "2J", "\x07", "\x9b", "\u202e", "\r", "\n", "a"])
).map("".join)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("loss 0.5", "loss 0.5"),
        ("né 中 🙂 👩\u200d💻\tx\ny", "né 中 🙂 👩\u200d💻\tx\ny"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("\x1b[2J\x1b[H", "\\x1b[2J\\x1b[H"),
        ("\x1bP1$r\x1b\\", "\\x1bP1$r\\x1b\\"),
        ("\x1bc", "\\x1bc"),
        ("\x9b2J \x9d0;x\x9c", "\\x9b2J \\x9d0;x\\x9c"),
        ("a\u202etxt.exe\u2066", "a\\u202etxt.exe\\u2066"),
        ("a\x00\x08\x7f", "a\\x00\\x08\\x7f"),
        ("\ud800", "\\ud800"),
    ],
)
def test_everything_but_text_is_shown_as_what_it_is(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert coloured(text) == shown


def test_colours_pass_in_lines_of_logs_alone() -> None:
    assert plain(f"{RED}a{NONE}") == "\\x1b[31ma\\x1b[0m"
    assert coloured(f"{RED}a{NONE} b") == f"{RED}a{NONE} b"
    assert coloured("\x1b[38;5;196mx\x1b[m") == "\x1b[38;5;196mx\x1b[m"
    assert coloured("\x1b[38:2:1:2:3mx") == f"\x1b[38:2:1:2:3mx{NONE}"


def test_a_colour_that_a_line_leaves_on_ends_with_the_line() -> None:
    assert coloured(f"{RED}a") == f"{RED}a{NONE}"
    assert coloured(f"{RED}a\nb") == f"{RED}a{NONE}\nb"
    assert coloured(f"{NONE}{RED}") == f"{NONE}{RED}{NONE}"


def test_what_a_progress_bar_wrote_over_itself_stands_in_lines() -> None:
    assert coloured(" 1%\r 2%\r\n") == " 1%\n 2%\n"
    assert coloured("windows\r") == "windows"


def test_a_name_stands_in_one_line() -> None:
    assert one_line("a\nState  SUCCEEDED\x1b") == "a State  SUCCEEDED\\x1b"


def test_values_of_json_are_made_plain_with_their_names() -> None:
    value = {"a\x1b": ["\x07", 1, None, {"b": "\u202e"}]}
    assert cleaned(value) == {"a\\x1b": ["\\x07", 1, None, {"b": "\\u202e"}]}


def test_further_lines_of_a_message_stand_below_its_first() -> None:
    replicas = [{"id": "r", "task": "worker", "state": "RUNNING"}]
    job = JobView.parse({"api": "vertex", "state": "RUNNING", "replicas": replicas})
    line = LogLine(replica="r", task="worker", severity="INFO", message="a\nservice  Job completed")
    shown = click.unstyle(LineTexts(job).of([line])[0]).splitlines()
    assert shown == ["worker  a", "        service  Job completed"]


@given(ANY_TEXT)
def test_nothing_else_ever_passes(text: str) -> None:
    control = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
    assert not control.search(plain(text))
    left = re.sub(r"\x1b\[[0-9;:]*m", "", coloured(text))
    assert not control.search(left)
    # Printing it never fails.
    coloured(text).encode()
