"""What a program writes is read line by line, and of nobody more than there is room for."""

import os
import threading

from trainshed.runtimes import output


def _pipe(content: bytes) -> tuple[int, int]:
    reader, writer = os.pipe()
    os.write(writer, content)
    return reader, writer


def test_a_line_that_does_not_end_is_cut() -> None:
    reader, writer = os.pipe()

    def write() -> None:
        with os.fdopen(writer, "wb") as file:
            file.write(b"x" * 1_000_000)

    writing = threading.Thread(target=write)
    writing.start()
    pieces = [line or "" for line in output.lines(reader, 60)]
    writing.join()
    os.close(reader)
    assert "".join(pieces) == "x" * 1_000_000
    assert max(map(len, pieces)) <= 1 << 18


def test_who_still_holds_the_other_end_is_not_waited_for() -> None:
    reader, writer = _pipe(b"first\nlast")
    line, end = os.pipe()
    os.close(end)
    assert list(output.lines(reader, 60, line)) == ["first", "last"]
    for handle in (reader, writer, line):
        os.close(handle)
