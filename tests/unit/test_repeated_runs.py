"""What `./dev test --repeat` tells of its runs (docs/adr/0054)."""

from tests.repeat import Outcome, outcome, table

REPORT = """<?xml version="1.0"?><testsuites><testsuite tests="4">
<testcase classname="tests.unit.test_a" name="test_good"/>
<testcase classname="tests.unit.test_a" name="test_bad[1]"><failure message="no">no</failure></testcase>
<testcase classname="tests.unit.test_a" name="test_left"><error message="at tear-down"/></testcase>
<testcase classname="tests.unit.test_a" name="test_away"><skipped/></testcase>
</testsuite></testsuites>"""
BAD, LEFT = "tests.unit.test_a::test_bad[1]", "tests.unit.test_a::test_left"


def test_failures_and_errors_count_and_skips_do_not() -> None:
    assert outcome(REPORT, 1) == Outcome(4, frozenset({BAD, LEFT}), 1)


def test_the_table_says_how_often_and_beside_what() -> None:
    runs = [
        Outcome(4, frozenset({BAD}), 1),
        Outcome(4, frozenset({BAD, LEFT}), 1, stressed=True),
        Outcome(4, frozenset(), 0),
    ]
    first, second, last = table(runs).splitlines()
    assert first.split() == ["2", "of", "3", "(1", "quiet,", "1", "stressed)", BAD]
    assert second.split() == ["1", "of", "3", "(0", "quiet,", "1", "stressed)", LEFT]
    assert last.startswith("1 of 3 runs were green")


def test_a_run_that_broke_off_is_not_green() -> None:
    """Nothing was collected, a worker was killed, or no test ran at all."""
    for run in (outcome("", 4), outcome("", 0), Outcome(4, frozenset(), 3)):
        assert not run.is_good
        assert "and none failed" in table([run])
