"""Terminal colours in output lines of programs."""

import pytest

from trainshed_console.rendering import clean, color_pieces, pieces


@pytest.mark.parametrize(
    ("line", "result"),
    [
        ("plain", []),
        ("\x1b[31mred\x1b[0m rest", [("red", "ink-1"), (" rest", "")]),
        ("a\x1b[1;4;92mb\x1b[22mc\x1b[24;39md", [("a", ""), ("b", "bold ink-2 under"),
         ("c", "ink-2 under"), ("d", "")]),
        ("\x1b[38;5;208mo\x1b[38;5;12mb\x1b[38;2;10;20;31mg", [("o", "ink-3"), ("b", "ink-4"), ("g", "")]),
        ("\x1b[38;2;255;90;40mr\x1b[48;5;33mb\x1b[38;5;244mg", [("r", "ink-1"), ("b", "ink-1 paper-6"),
         ("g", "paper-6")]),
        ("\x1b[42;30mon green\x1b[m.", [("on green", "ink-0 paper-2"), (".", "")]),
        ("\x1b[38;5;999mx\x1b[38mx\x1b[38;9;1my", [("x", ""), ("x", ""), ("y", "bold")]),
        ("\x1b[999999999;31mx", [("x", "ink-1")]),
    ],
)  # fmt: skip
def test_terminal_colours_become_css_classes(line: str, result: list[tuple[str, str]]) -> None:
    assert pieces(line) == result
    assert "".join(output for output, _ in result) == (clean(line) if result else "")


def test_terminal_sequences_other_than_colors_are_removed() -> None:
    line = (
        "\x1b[2J\x1b[H\x1b]0;title\x07\x1b]8;;https://evil.example\x1b\\link"
        "\x1b(B\x1b=\x1b[31m\u202ered\x1b[?25l"
    )
    assert clean(line) == "link\ufffdred"
    assert color_pieces(line) == [("link", ""), ("\ufffdred", "ink-1")]
