"""An operator's rows of the failure table: what may be said, and that all that is wrong is said at once."""

import tomllib
from typing import Any

import pytest

from tests.unit.jobs import PRIMARY, SECOND, WORKER, Life, job
from trainshed.core.failure.overrides import WrongRules, table_with
from trainshed.core.failure.rules import Rule
from trainshed.core.failure.table import RULES
from trainshed.core.job.spec import Scheduling
from trainshed.core.lifecycle.states import JobState
from trainshed.core.lifecycle.transition import FailurePolicy


def table(text: str) -> tuple[Rule, ...]:
    return table_with(entries(text))


def entries(text: str) -> list[dict[str, Any]]:
    return tomllib.loads(text).get("failure_rules", [])


def row(name: str, rules: tuple[Rule, ...]) -> Rule:
    return next(rule for rule in rules if rule.name == name)


def life(text: str, *counts: int) -> Life:
    return Life(job(*counts), FailurePolicy(table(text))).up()


def violations(text: str) -> tuple[str, ...]:
    with pytest.raises(WrongRules) as raised:
        table(text)
    return raised.value.violations


def test_no_entries_leave_the_table_as_it_is() -> None:
    assert table_with([]) == RULES


def test_an_entry_of_a_built_in_name_changes_what_it_names_and_nothing_else() -> None:
    """spec/failures#overrides: overridable by an operator."""
    changed = table(
        """
        [[failure_rules]]
        name = "stock_out"
        retries = 5
        back_off = [10, 60.5]
        """
    )
    before = row("stock_out", RULES)
    after = row("stock_out", changed)
    assert (after.retries, after.back_off) == (5, (10 * SECOND, 60_500_000_000))
    assert (after.code, after.message, after.gives_room) == (
        before.code,
        before.message,
        before.gives_room,
    )
    assert [r for r in changed if r.name != "stock_out"] == [
        r for r in RULES if r.name != "stock_out"
    ]


def test_restart_first_restarts_a_failed_replica_before_the_job_ends() -> None:
    """spec/failures#lost-replicas: the public text says that a failed replica is restarted at once on its VM;
    `restarts` gives that."""
    found = life('[[failure_rules]]\nname = "user_code_failed"\nrestarts = 1', 1, 1)
    found.exits(WORKER, 3)
    assert found.replica(WORKER).incarnation == 2
    assert found.job.state is JobState.RUNNING
    found.up().exits(WORKER, 3)
    assert found.up().job.state is JobState.FAILED


def test_the_limit_of_a_reducers_restarts_can_be_changed() -> None:
    """spec/reduction#losses: overridable by an operator. Its row goes on without the reducer whatever ended
    it, our own failure too."""
    changed = row(
        "reducer_lost", table('[[failure_rules]]\nname = "reducer_lost"\nrestarts = 3\nwindow = 20')
    )
    assert (changed.restarts, changed.window) == (3, 20 * SECOND)
    assert changed.match == row("reducer_lost", RULES).match


def test_the_time_between_restarts_can_be_changed() -> None:
    """spec/failures#overrides: overridable by an operator; a row without restarts has none."""
    given = '[[failure_rules]]\nname = "replica_lost"\nspacing = [0, 30]'
    assert row("replica_lost", table(given)).spacing == (0, 30 * SECOND)
    dropped = '[[failure_rules]]\nname = "reducer_lost"\nrestarts = 0\nwindow = 0'
    assert row("reducer_lost", table(dropped)).spacing == ()
    with pytest.raises(WrongRules, match="spacing: it is the time between restarts"):
        table('[[failure_rules]]\nname = "user_code_failed"\nspacing = 1')


def test_a_gang_that_is_lost_together_costs_one_of_the_retries_that_stand_for_restarts() -> None:
    """spec/failures#retries: with restartJobOnWorkerRestart a row of one restart is one retry, though the
    primary's end, reported second, finds it used up."""
    rules = table('[[failure_rules]]\nname = "replica_lost"\nrestarts = 1\nretries = 0')
    whole = job(1, 1, scheduling=Scheduling(restart_job_on_worker_restart=True))
    found = Life(whole, FailurePolicy(rules)).up()
    together = found.now
    found.exits(WORKER, signal=9, ended=together).exits(PRIMARY, signal=9, ended=together)
    assert (found.job.outcome, found.job.attempt) == (None, 2)
    found.up().exits(WORKER, signal=9)
    assert found.up().job.state is JobState.FAILED


def test_memory_may_grow_after_an_out_of_memory() -> None:
    """spec/machines#memory and the issue of the escalation: 1.5 times the memory with each retry, up to a
    cap."""
    found = life(
        """
        [[failure_rules]]
        name = "out_of_memory"
        retries = 3
        memory_growth = 1.5
        memory_cap = 4.0
        """
    )
    found.exits(PRIMARY, signal=9, oom=True)
    assert not found.job.is_placed, "where it was there may not be so much"
    assert (found.up().job.attempt, found.job.memory_factor) == (2, 1.5)


def test_a_new_row_stands_before_the_failures_and_wins() -> None:
    """spec/failures#rules: first match wins."""
    text = """
        [[failure_rules]]
        name = "bad_node"
        exit_codes = [42, "64-66"]
        signals = ["SIGBUS", "fpe", 4]
        action = "fail"
        restarts = 2
        """
    rules = table(text)
    names = [rule.name for rule in rules]
    assert names.index("bad_node") == names.index("out_of_memory") - 1
    made = row("bad_node", rules)
    assert made.match.exit_codes == {42, 64, 65, 66}
    assert made.match.signals == {4, 7, 8}
    found = life(text, 1, 1).exits(WORKER, 65)
    assert found.rules == ["bad_node"]
    assert found.replica(WORKER).incarnation == 2
    for _ in range(2):
        found.up().exits(WORKER, signal=7)
    error = found.up().job.error
    assert error is not None
    assert error.code == 3
    assert "The replica workerpool1-0 exited with a non-zero status of 7." in error.message


def test_a_new_row_may_stand_where_it_likes_and_speak_for_itself() -> None:
    rules = table(
        """
        [[failure_rules]]
        name = "licence_missing"
        before = "primary_succeeded"
        exit_codes = [77]
        action = "fail"
        code = 9
        text = "{replica} has no licence (status {status})."
        """
    )
    assert rules[0].name == "licence_missing"
    found = Life(job(), FailurePolicy(rules)).up().exits(PRIMARY, 77)
    assert found.job.error is not None
    assert (found.job.error.code, found.job.error.message) == (
        9,
        "workerpool0-0 has no licence (status 77).",
    )


def test_new_rows_of_one_place_keep_their_order() -> None:
    rules = table(
        """
        [[failure_rules]]
        name = "first"
        exit_codes = [1]
        action = "fail"
        [[failure_rules]]
        name = "second"
        exit_codes = ["1-9"]
        action = "fail"
        """
    )
    names = [rule.name for rule in rules]
    assert names.index("first") + 1 == names.index("second")


def test_a_code_of_a_worker_may_be_no_failure_and_one_of_the_primary_a_success() -> None:
    text = """
        [[failure_rules]]
        name = "early_stop"
        exit_codes = [3]
        primary = false
        action = "done"
        [[failure_rules]]
        name = "stopped_early"
        exit_codes = [3]
        primary = true
        action = "succeed"
        """
    found = life(text, 1, 1).exits(WORKER, 3)
    assert found.job.state is JobState.RUNNING
    assert found.exits(PRIMARY, 3).job.state is JobState.SUCCEEDED


@pytest.mark.parametrize("name", ["stock_out", "internal_error"])
def test_no_retries_need_no_pauses(name: str) -> None:
    """Who takes a built-in row's retries away takes its pauses away with them; spec/failures#overrides,
    "overridable"."""
    after = row(name, table(f'[[failure_rules]]\nname = "{name}"\nretries = 0'))
    assert (after.retries, after.back_off) == (0, ())


def test_a_row_may_be_dropped_if_another_has_the_last_word() -> None:
    rules = table('[[failure_rules]]\nname = "transient_exit"\nenabled = false')
    assert "transient_exit" not in [rule.name for rule in rules]
    found = Life(job(), FailurePolicy(rules)).up().exits(PRIMARY, 139)
    assert found.rules == ["user_code_failed"]


@pytest.mark.parametrize(
    ("name", "causes"),
    [
        ("user_code_failed", {"exited", "signalled"}),
        ("replica_lost", {"stalled", "left", "lost"}),
        ("internal_error", {"service"}),
        ("stock_out", {"stock_out"}),
    ],
)
def test_the_last_word_on_a_cause_cannot_be_dropped(name: str, causes: set[str]) -> None:
    said = violations(f'[[failure_rules]]\nname = "{name}"\nenabled = false')
    assert all(
        text.startswith(f'failure_rules "{name}".enabled: no row would say') for text in said
    )
    assert {text.split('of cause "')[1].split('"')[0] for text in said} == causes


def test_all_that_is_wrong_is_said_at_once_with_entry_and_field() -> None:
    said = violations(
        """
        [[failure_rules]]
        name = "Bad Name"
        [[failure_rules]]
        name = "stock_out"
        retries = -1
        gives_room = "no"
        colour = "red"
        [[failure_rules]]
        name = "mine"
        exit_codes = [300]
        signals = ["SIGNOT"]
        action = "explode"
        """
    )
    assert [text.split(": ")[0] for text in said] == [
        "failure_rules[0].name",
        'failure_rules "stock_out".retries',
        'failure_rules "stock_out".gives_room',
        'failure_rules "stock_out".colour',
        'failure_rules "mine".exit_codes',
        'failure_rules "mine".signals',
        'failure_rules "mine".action',
    ]
    assert "there is no such field; the fields are enabled, before, causes" in said[3]
    assert "'explode' is not one of succeed, done, fail" in said[6]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('name = "mine"\naction = "fail"', "causes: say when the row applies"),
        ('name = "mine"\ncauses = ["exited"]', "action: say what happens in the end"),
        ('name = "mine"\ncauses = []\naction = "fail"', "causes: [] is not a list of at least one"),
        (
            'name = "mine"\ncauses = ["cancelled"]\naction = "fail"',
            "causes: 'cancelled' is not one of",
        ),
        (
            'name = "mine"\ncauses = ["lost"]\naction = "fail"\nexit_codes = [3]',
            "exit_codes: only an end of cause",
        ),
        (
            'name = "mine"\ncauses = ["lost"]\naction = "fail"\nsignals = [3]',
            "signals: only an end of cause",
        ),
        ('name = "mine"\nexit_codes = [3]\naction = "done"', "action: a job cannot go on without"),
        (
            'name = "mine"\nexit_codes = [3]\naction = "succeed"\nretries = 1',
            "action: a success is not tried again",
        ),
        (
            'name = "mine"\ncauses = ["service"]\naction = "succeed"',
            'action: "succeed" is for ends of a replica',
        ),
        (
            'name = "mine"\ncauses = ["lost", "stock_out"]\naction = "fail"',
            "code: its causes have different codes",
        ),
        (
            'name = "mine"\nexit_codes = [3]\naction = "fail"\nbefore = "nobody"',
            "before: there is no row 'nobody'",
        ),
        (
            'name = "mine"\nexit_codes = [3]\naction = "fail"\ntext = "{job} is over"',
            "text: nothing stands for {job}",
        ),
        ('name = "mine"\nenabled = "no"\ncode = 3', "enabled: 'no' is not true or false"),
        ('name = "mine"\nenabled = false', "enabled: there is no built-in row of this name"),
        ('name = "stock_out"\nbefore = "cancelled"', "before: a built-in row keeps its place"),
        ('name = "stock_out"\ngives_room = false', "gives_room: the job has no room"),
        ('name = "stock_out"\nrestarts = 1', "restarts: no single replica ended"),
        ('name = "stock_out"\nenabled = false\nretries = 1', "retries: says nothing"),
        ('name = "cancelled"\ncode = 2', "name: a cancel does not pass the table"),
        ('name = "out_of_memory"\nmemory_growth = 1.5', "memory_growth: memory grows with a retry"),
        (
            'name = "out_of_memory"\nmemory_growth = 1.5\nretries = 1',
            "memory_cap: memory cannot grow",
        ),
        ('name = "out_of_memory"\nmemory_growth = 0.5', "memory_growth: 0.5 is less than 1"),
        ('name = "out_of_memory"\nback_off = 5', "back_off: it is the pause before a retry"),
        ('name = "out_of_memory"\nwindow = 5', "window: it limits restarts"),
        ('name = "out_of_memory"\ncode = 99', "code: 99 is not a google.rpc code"),
        ('name = "out_of_memory"\nretries = true', "retries: True is not a whole number"),
        ('name = "user_code_failed"\nexit_codes = [1]', "exit_codes: no row would say"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: str, said: str) -> None:
    (first, *_) = violations(f"[[failure_rules]]\n{fields}")
    assert said in first


def test_one_fault_hides_no_other() -> None:
    """docs/failure-table.md: all that is wrong is said at once, by entry and field."""
    said = violations(
        """
        [[failure_rules]]
        name = "Bad Name"
        retries = -1
        before = "nobody"
        [[failure_rules]]
        name = "mine"
        exit_codes = [300]
        before = "nobody"
        [[failure_rules]]
        name = "stock_out"
        enabled = false
        retries = 1
        """
    )
    assert [text.split(": ")[0] for text in said] == [
        "failure_rules[0].name",
        "failure_rules[0].retries",
        "failure_rules[0].before",
        'failure_rules "mine".exit_codes',
        'failure_rules "mine".before',
        'failure_rules "mine".action',
        'failure_rules "stock_out".retries',
        'failure_rules "stock_out".enabled',
    ]


def test_a_faulty_row_that_may_be_the_last_word_leaves_no_gap_and_is_a_place() -> None:
    (said,) = violations(
        """
        [[failure_rules]]
        name = "mine"
        causes = ["stock_out"]
        action = "fail"
        retries = -1
        [[failure_rules]]
        name = "stock_out"
        enabled = false
        [[failure_rules]]
        name = "first"
        before = "mine"
        exit_codes = [7]
        action = "fail"
        """
    )
    assert said.startswith('failure_rules "mine".retries: ')


def test_two_entries_of_one_name_are_refused() -> None:
    one = '[[failure_rules]]\nname = "stock_out"\nretries = 1\n'
    assert violations(one + one) == (
        'failure_rules "stock_out".name: an entry of this name came before; put both into one',
    )
