"""Filters on the labels of items, by which splits select them:
`labels.aiplatform.googleapis.com/ml_use=training`."""

import re
from collections.abc import Callable, Mapping
from typing import Final

NOTHING: Final = "-"
"""The filter that no item passes."""
MAX_CHARS: Final = 4_096
_MAX_DEPTH: Final = 20

LabelTest = Callable[[Mapping[str, str]], bool]
_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<mark>[()])|(?P<word>AND|OR|NOT)(?![^\s()])|"""
    r"""labels\.(?:"(?P<quoted>[^"]+)"|(?P<key>[^\s=!:()"]+))\s*(?P<operator>!=|=|:)\s*"""
    r"""(?:"(?P<text>[^"]*)"|(?P<value>[^\s()"]+)))"""
)


class BadFilter(ValueError):
    """The text is no filter on labels."""


def compiled(text: str) -> LabelTest:
    """Return the test for a filter: `labels.KEY=VALUE`, `!=`, `labels.KEY:*`, AND, OR, NOT, parentheses; no
    item passes "-". Raise BadFilter for anything else."""
    if text.strip() == NOTHING:
        return lambda labels: False
    if len(text) > MAX_CHARS:
        raise BadFilter(f"a filter has at most {MAX_CHARS} characters")
    parser = _Parser(text)
    test = parser.alternatives(0)
    parser.finish()
    return test


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def finish(self) -> None:
        if self._text[self._at :].strip():
            raise self._bad()

    def alternatives(self, depth: int) -> LabelTest:
        """Return tests joined by OR, each of which may be several joined by AND."""
        if depth > _MAX_DEPTH:
            raise BadFilter("its parentheses are too deep")
        tests = [self._all(depth)]
        while self._takes("OR"):
            tests.append(self._all(depth))
        return tests[0] if len(tests) == 1 else lambda labels: any(t(labels) for t in tests)

    def _all(self, depth: int) -> LabelTest:
        tests = [self._one(depth)]
        while self._takes("AND"):
            tests.append(self._one(depth))
        return tests[0] if len(tests) == 1 else lambda labels: all(t(labels) for t in tests)

    def _one(self, depth: int) -> LabelTest:
        if self._takes("NOT"):
            test = self._one(depth + 1) if depth < _MAX_DEPTH else None
            if test is None:
                raise BadFilter("its negations are too deep")
            return lambda labels: not test(labels)
        if self._takes("("):
            test = self.alternatives(depth + 1)
            if not self._takes(")"):
                raise self._bad()
            return test
        found = _TOKEN.match(self._text, self._at)
        if found is None or not found["operator"]:
            raise self._bad()
        self._at = found.end()
        return _comparison(found)

    def _takes(self, token: str) -> bool:
        found = _TOKEN.match(self._text, self._at)
        if found is None or token not in (found["mark"], found["word"]):
            return False
        self._at = found.end()
        return True

    def _bad(self) -> BadFilter:
        rest = self._text[self._at :].strip()[:40] or "its end"
        return BadFilter(
            f"{rest!r} is not understood; compare labels, labels.KEY=VALUE, joined by AND, OR and NOT, or "
            "use - for no items"
        )


def _comparison(found: re.Match[str]) -> LabelTest:
    key = found["quoted"] or found["key"]
    value = found["text"] if found["text"] is not None else found["value"]
    if found["operator"] == "!=":
        return lambda labels: labels.get(key) != value
    if found["operator"] == ":" and value == "*":
        return lambda labels: key in labels
    return lambda labels: labels.get(key) == value
