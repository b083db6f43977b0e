"""What `trainshed up` tells the person at the terminal."""

from trainshed.serve.settings import load
from trainshed.serve.up import facts_of


def test_jobs_taken_over_are_named_as_far_as_they_can_be_read() -> None:
    """A thousand numbers in one line tell nobody anything."""
    settings = load(None, {})
    (told,) = facts_of(settings, [f"{uid} job" for uid in range(12)])
    assert told.startswith("Taken over: 12 jobs that ran on (0 job, 1 job, ")
    assert told.endswith("9 job and 2 more).")
    assert list(facts_of(settings, ["7 one"])) == ["Taken over: 1 job that ran on (7 one)."]
