"""An operator's own rows of the failure table (spec/failures#overrides), by the examples of
docs/failure-table.md."""

import tomllib
from collections.abc import Iterator

import pytest

from tests.e2e.processes import leftovers
from tests.e2e.running import (
    ROOT,
    Service,
    running,
)
from tests.e2e.stories import PRIMARY, Verdict, run, story

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
