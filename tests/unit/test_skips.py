"""The list of skipped tests at the end of a run."""

from types import SimpleNamespace
from typing import Any

from tests.skips import summary


def test_skipped_tests_are_counted_and_named_by_reason() -> None:
    """Tests of ordinary users were skipped without a word in a clone that only its owner can enter."""

    def report(name: str, why: str) -> Any:
        return SimpleNamespace(nodeid=name, longrepr=("test.py", 1, f"Skipped: {why}"))

    closed = "/root is closed to other users"
    reports = [
        *(report(f"tests/test_a.py::test_user[{level}]", closed) for level in ("own", "a[b]")),
        report("tests/test_a.py::test_other", closed),
        report("tests/test_b.py::test_tool", "no podman"),
    ]
    assert summary(reports) == [
        "Skipped tests: 4. These were NOT tested here:",
        f"3 × {closed}",
        "    tests/test_a.py::test_other",
        "    tests/test_a.py::test_user (2 cases)",
        "1 × no podman",
        "    tests/test_b.py::test_tool",
    ]
    assert not summary([])
