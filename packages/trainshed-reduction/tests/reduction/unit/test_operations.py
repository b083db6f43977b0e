"""What a program's error says of an all-reduce that failed."""

import traceback

import pytest

from trainshed_reduction.client.operations import Operation, ReductionFailed


def test_a_failure_is_told_where_the_program_waits_and_not_where_it_was_found() -> None:
    """spec/reduction: a job's error is the end of its log, in which the package's inside would take the room
    of the program's lines."""

    def found_in_another_thread() -> None:
        raise ReductionFailed("a rank is gone")

    pending = Operation(1)
    try:
        found_in_another_thread()
    except ReductionFailed as failure:
        pending.finish(failure)
    for _ in range(2):
        with pytest.raises(ReductionFailed) as caught:
            pending.wait()
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert names[1:] == ["wait"]
