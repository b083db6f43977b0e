"""What a wrong command teaches."""

import pytest
from click.testing import CliRunner

from trainshed.serve.main import group


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("logs", "No such command 'logs'. Did you mean 'trainshed jobs logs'?"),
        ("job", "No such command 'job'. Did you mean 'jobs'?"),
        ("frobnicate", "No such command 'frobnicate'."),
    ],
)
def test_who_leaves_the_group_out_is_told_which(typed: str, text: str) -> None:
    result = CliRunner().invoke(group, [typed, "x"], prog_name="trainshed")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, f"Error: {text}")
