"""The list of skipped tests at the end of a run."""

from types import SimpleNamespace
from typing import Any

from tests.skips import summary


def test_summary_of_a_test_run_lists_skipped_tests_by_reason() -> None:
    """A run lists skipped tests, such as those that need a checkout readable by other users."""

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
