"""Pattern matching takes linear time, for patterns of callers and for fixed patterns on untrusted texts
(ReDoS)."""

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
import trainshed_pipelines
import trainshed_tracking
from tests.soaks import SOAKS
from trainshed.core.patterns import MAX_LENGTH, PatternError, compile_regex, compile_wildcard

LONG = 40_000
codes: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")


def thread_seconds(work: Any) -> float:
    """Return the CPU seconds of this thread, independent of other load on the machine."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def is_linear(work: Callable[[str], object], piece: str) -> bool:
    """Return whether four times the text takes about four times as long. Backtracking would take 16 times."""
    texts = (piece * (LONG // len(piece) // share) for share in (4, 1))
    part, whole = (min(thread_seconds(partial(work, text)) for _ in range(2)) for text in texts)
    return whole < 10 * max(part, 0.01)


@pytest.mark.parametrize(
    ("pattern", "piece"),
    [
        *(("*a" * 50 + "*b", "a"), ("*a*a*b", "a"), ("a*" * 5000 + "b", "a"), ("*" * LONG, "a")),
        ("*" + "ab" * 500 + "c*", "ab"),
    ],
)
def test_wildcard_match_takes_linear_time(pattern: str, piece: str) -> None:
    assert is_linear(compile_wildcard(pattern), piece)


@given(st.text("ab*\n", max_size=8), st.text("ab\n", max_size=10))
def test_wildcard_match_equals_regular_expression_match(pattern: str, text: str) -> None:
    slow = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    assert compile_wildcard(pattern)(text) == (slow.fullmatch(text) is not None)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(.*)*b", "(a|b)*a(a|b){300}", "(.*,){20}x"])
def test_regular_expression_match_takes_linear_time(pattern: str) -> None:
    """Python's `re` would need years for 30 characters (ReDoS)."""
    regex = compile_regex(pattern)
    assert is_linear(lambda text: regex.found_in(text + "!"), "a")


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a" * (MAX_LENGTH + 1), f"{MAX_LENGTH + 1} characters. The maximum is {MAX_LENGTH}"),
        (r"(a)\1", "no back-references"),
        ("(?=a)", "no look-around"),
        ("(?<!a)b", "no look-around"),
        ("(a{99}){99}", "Use at most 1000"),
        ("(a{30}b{30}c{30}){9}" * 9, "Use fewer repetitions"),
        ("(", "literal special"),
    ],
)
def test_unsupported_regular_expression_error_has_a_reason(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=re.escape(reason)):
        compile_regex(pattern)


def test_pattern_matches_text_with_an_unpaired_surrogate() -> None:
    assert compile_regex("a.b").found_in("a\ud800b")
    with pytest.raises(PatternError, match="an incomplete character"):
        compile_regex("\ud800")


BOUNDED = {
    "trainshed.buckets.listing": "reads at most as many characters as an object's name has",
    "trainshed.store.logs.lines": "reads the first 400 characters of a line",
    "trainshed.cli.run.source_files": "reads the user's own files",
}
"""Modules whose patterns never receive long untrusted texts."""
_PUMPED = 5_000
_SUSPECT = 0.005
"""Time limit in seconds for that many characters. Linear patterns need less than 1 ms, and 4 times as long
for 4 times the text. The fastest known quadratic pattern needs 20 ms, and 16 times as long."""
_SAMPLES = {codes.CATEGORY_DIGIT: "1", codes.CATEGORY_SPACE: " ", codes.CATEGORY_WORD: "a"}


def modules() -> Iterator[ModuleType]:
    members = (
        module
        for package in (trainshed, trainshed_console, trainshed_pipelines, trainshed_tracking)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    )
    for module in members:
        if re.search(r"__main__|trainshed_reduction|absent_op", module.name):
            continue  # Standalone programs that only read their own files.
        yield importlib.import_module(module.name)


def fixed_patterns() -> list[tuple[str, str, re.Pattern[Any]]]:
    """Return (location, method, pattern) for each fixed pattern and each method that its module calls."""
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
    """Yield texts that match parts of a pattern: its literals, and a sample of each character class."""
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


def test_regular_expressions_in_the_source_take_linear_time_on_long_texts() -> None:
    """The texts are built from parts of each pattern. All modules share one test, because the test imports
    all of them."""
    slow = [fault for where, method, pattern in fixed_patterns() for fault in slow_at(where, method, pattern)]
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
    """Return the CPU seconds of this thread for a text of `length` characters."""
    text: Any = start + pump * (length // len(pump)) + "\x01"
    if isinstance(pattern.pattern, bytes):
        text = text.encode("latin-1", "replace")
    return thread_seconds(partial(run, pattern, method, text))


def run(pattern: re.Pattern[Any], method: str, text: Any) -> None:
    match method:
        case "sub" | "subn":
            getattr(pattern, method)("" if isinstance(text, str) else b"", text)
        case "finditer":
            pattern.sub(lambda _: text[:0], text)
        case _:
            getattr(pattern, method)(text)
