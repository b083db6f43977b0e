"""Patterns cost time in proportion to the text: callers' own, and our own on strangers' texts."""

import importlib
import inspect
import itertools
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainshed
import trainshed_console
import trainshed_tracking
from tests.soaks import SOAKS
from trainshed.core.patterns import MAX_LENGTH, PatternError, compile_regex, compile_wildcard

LONG = 40_000
codes: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")


def seconds(work: Any) -> float:
    """Of this thread: others on the machine do not count."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def is_linear(work: Callable[[str], object], piece: str) -> bool:
    """Whether four times the text takes about four times as long; with steps back it were sixteen times."""
    texts = (piece * (LONG // len(piece) // share) for share in (4, 1))
    part, whole = (min(seconds(partial(work, text)) for _ in range(2)) for text in texts)
    return whole < 10 * max(part, 0.01)


@pytest.mark.parametrize(
    ("pattern", "piece"),
    [
        *(("*a" * 50 + "*b", "a"), ("*a*a*b", "a"), ("a*" * 5000 + "b", "a"), ("*" * LONG, "a")),
        ("*" + "ab" * 500 + "c*", "ab"),
    ],
)
def test_a_wildcard_costs_no_backtracking(pattern: str, piece: str) -> None:
    assert is_linear(compile_wildcard(pattern), piece)


@given(st.text("ab*\n", max_size=8), st.text("ab\n", max_size=10))
def test_a_wildcard_matches_what_the_slow_way_matches(pattern: str, text: str) -> None:
    slow = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    assert compile_wildcard(pattern)(text) == (slow.fullmatch(text) is not None)


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*$", "(.*)*b", "(a|b)*a(a|b){300}", "(.*,){20}x"]
)
def test_a_regular_expression_costs_no_backtracking(pattern: str) -> None:
    """Python's `re` needs years for thirty characters."""
    regex = compile_regex(pattern)
    assert is_linear(lambda text: regex.found_in(text + "!"), "a")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a" * (MAX_LENGTH + 1), f"{MAX_LENGTH + 1} characters; at most {MAX_LENGTH}"),
        (r"(a)\1", "no back-references"),
        ("(?=a)", "no look-around"),
        ("(?<!a)b", "no look-around"),
        ("(a{99}){99}", "Use at most 1000"),
        ("(a{30}b{30}c{30}){9}" * 9, "Use fewer repetitions"),
        ("(", "literal special"),
    ],
)
def test_a_regular_expression_that_is_not_served_says_why(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(reason)):
        compile_regex(pattern)


def test_half_a_character_is_no_error() -> None:
    assert compile_regex("a.b").found_in("a\ud800b")
    with pytest.raises(PatternError, match="half a character"):
        compile_regex("\ud800")


BOUNDED = {
    "trainshed.buckets.listing": "reads at most as many characters as an object's name has",
    "trainshed.store.logs.lines": "reads the first 400 characters of a line",
    "trainshed.cli.run.source_files": "reads the user's own files",
}
"""Modules whose patterns never see a long text of a stranger."""
_PUMPED = 5_000
_SUSPECT = 0.005
"""Seconds for that many characters. Linear patterns need less than a thousandth of one, and four for four
times as many; the cheapest quadratic one seen needs 0.02 and sixteen times that."""
_SAMPLES = {codes.CATEGORY_DIGIT: "1", codes.CATEGORY_SPACE: " ", codes.CATEGORY_WORD: "a"}


def modules() -> Iterator[ModuleType]:
    members = (
        module
        for package in (trainshed, trainshed_console, trainshed_tracking)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    )
    for module in members:
        if re.search(r"__main__|trainshed_reduction|absent_op", module.name):
            continue  # Programs of their own, which read what is theirs.
        yield importlib.import_module(module.name)


def used() -> list[tuple[str, str, re.Pattern[Any]]]:
    """Each fixed pattern with a method that its module calls: (where, method, pattern)."""
    calls: list[tuple[str, str, re.Pattern[Any]]] = []
    for module in modules():
        members: dict[str, Any] = vars(module)
        patterns: dict[str, re.Pattern[Any]] = {
            name: value for name, value in members.items() if type(value) is re.Pattern
        }
        if not patterns or module.__name__ in BOUNDED:
            continue
        source = inspect.getsource(module)
        for name, pattern in patterns.items():
            for method in sorted(set(re.findall(rf"\b{name}\.(\w+)\(", source))):
                calls.append((f"{module.__name__}.{name}", method, pattern))
    return calls


def pieces(tree: Any) -> Iterator[str]:
    """Texts that parts of a pattern match: its words, and a sample of each class."""
    word = ""
    for code, value in tree:
        if code is codes.LITERAL:
            word += chr(value)
            yield chr(value)
            continue
        if word:
            yield word
        word = ""
        if code is codes.IN:
            for kind, argument in value:
                if kind is codes.LITERAL:
                    yield chr(argument)
                elif kind is codes.RANGE:
                    yield chr(argument[0])
                else:
                    yield _SAMPLES.get(argument, "~")
        elif code is codes.BRANCH:
            for branch in value[1]:
                yield from pieces(branch)
        elif code is codes.SUBPATTERN:
            yield from pieces(value[3])
        elif code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            yield from pieces(value[2])
        elif code is codes.ATOMIC_GROUP:
            yield from pieces(value)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            yield from pieces(value[1])
        elif code in (codes.ANY, codes.NOT_LITERAL):
            yield "~"
    if word:
        yield word


def test_fixed_patterns_cost_time_in_proportion() -> None:
    """Texts made of a pattern's own parts. One test, since all modules are loaded for it."""
    slow = [fault for where, method, pattern in used() for fault in slow_at(where, method, pattern)]
    assert slow == []


def slow_at(where: str, method: str, pattern: re.Pattern[Any]) -> Iterator[str]:
    parts = sorted(set(pieces(parser.parse(pattern.pattern, pattern.flags))))
    pumps = [*parts, *(a + b for a, b in itertools.permutations(parts[:12], 2))]
    began, most = time.thread_time(), 10 if SOAKS else 0.05
    for pump, start in itertools.product(pumps, ["", *parts[:30]]):
        if cost(pattern, method, start, pump, _PUMPED) < _SUSPECT:
            if time.thread_time() - began > most:
                return
        elif (taken := cost(pattern, method, start, pump, 4 * _PUMPED)) > 40 * _SUSPECT:
            yield f"{where}.{method}: {start!r} and many {pump!r}: {taken:.2f} s"
            return


def cost(pattern: re.Pattern[Any], method: str, start: str, pump: str, length: int) -> float:
    """Seconds of this thread for a text of `length` characters."""
    text: Any = start + pump * (length // len(pump)) + "\x01"
    if isinstance(pattern.pattern, bytes):
        text = text.encode("latin-1", "replace")
    return seconds(partial(run, pattern, method, text))


def run(pattern: re.Pattern[Any], method: str, text: Any) -> None:
    match method:
        case "sub" | "subn":
            getattr(pattern, method)("" if isinstance(text, str) else b"", text)
        case "finditer":
            pattern.sub(lambda _: text[:0], text)
        case _:
            getattr(pattern, method)(text)
