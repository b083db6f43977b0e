"""Terminal output is free of escape sequences, except colours in log lines (terminal injection)."""

import re

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainshed.cli.jobs.views import JobView, LineTexts
from trainshed.cli.text.colours import keep_colours, make_plain, one_line, plain
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
def test_control_characters_are_escaped_in_terminal_output(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert keep_colours(text) == shown


def test_terminal_colours_are_kept_only_in_log_lines() -> None:
    assert plain(f"{RED}a{NONE}") == "\\x1b[31ma\\x1b[0m"
    assert keep_colours(f"{RED}a{NONE} b") == f"{RED}a{NONE} b"
    assert keep_colours("\x1b[38;5;196mx\x1b[m") == "\x1b[38;5;196mx\x1b[m"
    assert keep_colours("\x1b[38:2:1:2:3mx") == f"\x1b[38:2:1:2:3mx{NONE}"


def test_unfinished_terminal_colour_is_reset_at_the_end_of_the_line() -> None:
    assert keep_colours(f"{RED}a") == f"{RED}a{NONE}"
    assert keep_colours(f"{RED}a\nb") == f"{RED}a{NONE}\nb"
    assert keep_colours(f"{NONE}{RED}") == f"{NONE}{RED}{NONE}"


def test_carriage_returns_of_a_progress_bar_are_printed_as_line_breaks() -> None:
    assert keep_colours(" 1%\r 2%\r\n") == " 1%\n 2%\n"
    assert keep_colours("windows\r") == "windows"


def test_names_with_line_breaks_are_printed_on_a_single_line() -> None:
    assert one_line("a\nState  SUCCEEDED\x1b") == "a State  SUCCEEDED\\x1b"


def test_json_output_escapes_control_characters_in_keys_and_values() -> None:
    value = {"a\x1b": ["\x07", 1, None, {"b": "\u202e"}]}
    assert make_plain(value) == {"a\\x1b": ["\\x07", 1, None, {"b": "\\u202e"}]}


def test_continuation_lines_of_a_log_message_are_indented() -> None:
    replicas = [{"id": "r", "task": "worker", "state": "RUNNING"}]
    job = JobView.parse({"api": "vertex", "state": "RUNNING", "replicas": replicas})
    line = LogLine(replica="r", task="worker", severity="INFO", message="a\nservice  Job completed")
    shown = click.unstyle(LineTexts(job).format([line])[0]).splitlines()
    assert shown == ["worker  a", "        service  Job completed"]


@given(ANY_TEXT)
def test_no_text_can_inject_control_characters_into_the_terminal(text: str) -> None:
    control = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
    assert not control.search(plain(text))
    left = re.sub(r"\x1b\[[0-9;:]*m", "", keep_colours(text))
    assert not control.search(left)
    # The terminal can always encode the text.
    keep_colours(text).encode()
