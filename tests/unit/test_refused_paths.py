"""What a job's error says of a path that its program may not have."""

import pytest
from msgspec.structs import replace

from tests.unit.jobs import RUNTIME
from trainshed.core.failure.refused_paths import advice_on_path, refused_path
from trainshed.core.job.spec import Program
from trainshed.core.runtime import CONTAINER

TRACEBACK = """Traceback (most recent call last):
  File "task.py", line 3, in <module>
    os.makedirs("/workspace/out")
{error}
"""


@pytest.mark.parametrize(
    ("last", "path"),
    [
        (
            TRACEBACK.format(error="PermissionError: [Errno 13] Permission denied: '/workspace'"),
            "/workspace",
        ),
        (TRACEBACK.format(error="OSError: [Errno 30] Read-only file system: '/usr/x'"), "/usr/x"),
        ("mkdir: cannot create directory ‘/data’: Permission denied\n", "/data"),
        ("touch: cannot touch '/opt/it': Read-only file system", "/opt/it"),
        ("cp: cannot create regular file '/app/m.py': Permission denied", "/app/m.py"),
        ("sh: 1: cannot create /workspace/log: Permission denied", "/workspace/log"),
        # Somebody else's matter: a place that is the program's, or a refusal that it went on after.
        ("PermissionError: [Errno 13] Permission denied: '/gcs/b/model'", ""),
        ("PermissionError: [Errno 13] Permission denied: '/tmp/closed/x'", ""),
        ("PermissionError: [Errno 13] Permission denied: 'model.pt'", ""),
        ("mkdir: cannot create directory '/data': Permission denied\nValueError: no data", ""),
        ("", ""),
    ],
)
def test_the_path_is_read_from_the_last_line(last: str, path: str) -> None:
    assert refused_path(last) == path


def test_a_prebuilt_image_is_told_where_it_may_write() -> None:
    told = advice_on_path("/workspace", Program(RUNTIME, command=("python3",)))
    assert "cannot write /workspace here" in told
    assert "/tmp" in told
    assert "trainshed-own-root=on" in told


def test_who_wants_the_machines_own_files_is_not_told_of_the_label() -> None:
    """It would not help him."""
    program = Program(RUNTIME, command=("python3",))
    assert "trainshed-own-root" not in advice_on_path("/usr/x", program)
    assert "trainshed-own-root" not in advice_on_path("/root", program)
    assert "trainshed-own-root" in advice_on_path("/library", program)


def test_of_an_image_of_ones_own_all_may_be_changed() -> None:
    own = Program(replace(RUNTIME, family=CONTAINER), image_uri="localhost/mine:1")
    assert not advice_on_path("/workspace", own)
