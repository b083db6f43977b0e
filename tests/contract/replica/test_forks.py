"""What a guardian is told by a preloader's fork (spec/program#warm-starts)."""

import os
import socket
from pathlib import Path

from trainshed.replica import protocol
from trainshed.replica.supervisor.program import Program
from trainshed.replica.supervisor.warm_start import WarmStart
from trainshed.replica.system import cgroups, unix_sockets


def test_the_filters_handle_is_found_where_a_slow_guardian_reads_two_lines_at_once(
    tmp_path: Path,
) -> None:
    """It would be lost with the first line, and each connect of the program would wait for ever."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python3"
    python.symlink_to("/bin/sh")
    read, write = os.pipe()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "preloader"))
        listener.listen()
        place = protocol.WarmStart(preloader=str(tmp_path / "preloader"), template=str(tmp_path))
        warm = WarmStart(place, protocol.LEVEL_ROOT)
        preloader, _ = listener.accept()
        with preloader:
            preloader.sendall(b"waiting 5\n")
            unix_sockets.send(preloader, b"ready\n", read)
            main = Program(
                argv=["python3", "task.py"],
                environ={"PATH": str(python.parent)},
                directory="/",
                output=1,
                errors=2,
                groups=cgroups.ControlGroups(protocol.Limits()),
            )
            handle = warm.prepare(main, protocol.LEVEL_ROOT, None, True)
            assert not warm.cold_because
            assert handle >= 0 and os.path.sameopenfile(handle, read)
            warm.close()
    for each in (read, write, handle):
        os.close(each)
