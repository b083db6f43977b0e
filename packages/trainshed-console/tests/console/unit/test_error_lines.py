"""One-line summaries of job errors in the console."""

import pytest
from msgspec import UNSET

from trainshed.wire.trainshed_v1.jobs import JobError
from trainshed_console.pages.jobs import error_line

EXITED = "The replica workerpool0-0 exited with a non-zero status of 3. Termination reason: Error. \n"
TRACED = f"{EXITED}Traceback (most recent call last):\n  x\nKeyError: 'a'\n\nTo find out more"


@pytest.mark.parametrize(
    ("message", "reason", "line"),
    [
        (TRACED, "KeyError: 'a'", "KeyError: 'a'"),
        (
            EXITED,
            "run.sh: line 2: fit: command not found",
            "run.sh: line 2: fit: command not found (Exit status 3 of workerpool0-0)",
        ),
        (
            EXITED,
            "The packages x could not be installed. The installer's last lines:\n  cause: Because y",
            "Because y (Exit status 3 of workerpool0-0)",
        ),
        (EXITED, "", "Exit status 3 of workerpool0-0"),
        ("Out of stock", "", "Out of stock"),
    ],
)
def test_error_line_contains_exit_status_and_cause(message: str, reason: str, line: str) -> None:
    assert error_line(JobError(3, message, reason)) == line


def test_job_without_an_error_has_no_error_line() -> None:
    assert (error_line(None), error_line(UNSET)) == ("", "")
