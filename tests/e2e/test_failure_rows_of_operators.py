"""An operator's own rows of the failure table (spec/failures#overrides), by the examples of
docs/failure-table.md."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import leftovers
from tests.e2e.running import (
    ROOT,
    Service,
    running,
)
from tests.e2e.stories import ABORTS, PRIMARY, WORKER, Verdict, at, run, story, user_code

MORE = """
[[failure_rules]]
name = "user_code_failed"
causes = ["exited", "signalled"]
restarts = 1
action = "fail"
code = 3
message = "user_code"

[[failure_rules]]
name = "early_stop"
causes = ["exited"]
exit_codes = [3]
primary = false
action = "done"

[[failure_rules]]
name = "transient_exit"
causes = ["exited", "signalled"]
exit_codes = [6, 11, 134, 139]
signals = ["SIGABRT", "SIGSEGV"]
action = "fail"
code = 3
message = "user_code"
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with all examples of docs/failure-table.md in force at once, and `MORE`."""
    page = (ROOT / "docs" / "failure-table.md").read_text()
    examples = [part.split("```")[0] for part in page.split("```toml\n")[1:]] + [MORE]
    data = tmp_path_factory.mktemp("house")
    config = data / "settings.toml"
    config.write_text("grace = 1\n" + "\n".join(examples))
    names = {rule["name"] for rule in tomllib.loads(config.read_text())["failure_rules"]}
    assert names == {
        *("user_code_failed", "out_of_memory", "bad_device", "early_stop", "transient_exit")
    }
    with running(data / "data", "--config", str(config)) as started:
        yield started
    assert not leftovers(data / "data")


def test_restart_first(house: Service) -> None:
    """spec/failures#overrides, last paragraph: the operator's rule that has a failed replica restarted before
    the job ends."""
    told = story(house, run(house, "raise SystemExit(1)"))
    user_code(told, 1)
    assert told.verdicts == [
        Verdict("user_code_failed", "replica_restarts", budget="1/1"),
        Verdict("user_code_failed", "job_fails"),
    ]
    assert told.begun == {PRIMARY: 2}
    assert told.view["attempt"] == 1


def test_a_row_of_the_house_with_words_of_its_own(house: Service) -> None:
    told = story(house, run(house, "raise SystemExit(86)"))
    assert (told.state, told.code) == ("FAILED", 14)
    assert told.message == f"{PRIMARY} met a bad device and exited with 86. Tell the operators."
    assert told.verdicts == [
        Verdict("bad_device", "job_retries", budget="1/2"),
        Verdict("bad_device", "job_retries", budget="2/2"),
        Verdict("bad_device", "job_fails"),
    ]
    assert told.begun == {PRIMARY: 3}


def test_workers_that_stop_early_and_crashes_that_are_final(house: Service, gate: Path) -> None:
    """The primary's exit 3 is not meant by the row; without the retries of `transient_exit` a crash is the
    end."""
    job_id = run(house, at(gate), "raise SystemExit(3)")
    for view in house.watch(job_id):
        if view["replicas"][1]["state"] == "EXITED":
            break
    gate.write_text("")
    crash = run(house, ABORTS)
    told = story(house, job_id)
    assert told.state == "SUCCEEDED"
    assert told.verdicts == [Verdict("early_stop", "replica_done", WORKER)]
    told = story(house, crash)
    user_code(told, 134)
    assert told.verdicts == [Verdict("transient_exit", "job_fails")]
    assert told.begun == {PRIMARY: 1}
