"""What is left of an object when the process is killed while it is replaced or removed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.unit.stored import BUCKET, get, put
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.buckets.errors import NotFound
from trainshed.buckets.port import Draft, ObjectRef

_WATCHED = ("files.py", "objects.py", "records.py")
_TYPED = Draft({"contentType": "text/plain"})


def _act(root: Path, action: str) -> None:
    store = ObjectStore(root)
    if action == "delete":
        store.delete(ObjectRef(BUCKET, "x"))
    else:
        put(store, "x", b"two", draft=_TYPED)


def _act_until(step: int, root: Path, action: str) -> None:
    """Kill this process before the `step`-th line of the store's code."""
    left, has_begun = step, False

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left, has_begun
        # Before this nothing is changed that anybody sees.
        has_begun = has_begun or frame.f_code.co_name in ("_describe", "remove")
        if not frame.f_code.co_filename.endswith(_WATCHED):
            return None
        if event == "line" and has_begun:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    # A killed process loses nothing that it has written, and waiting for the disk takes minutes here.
    os.fsync = _do_not_wait
    sys.settrace(trace)
    _act(root, action)
    sys.settrace(None)


def _killed_at(step: int, root: Path, action: str) -> bool:
    """Returns whether it was killed, and the action not done."""
    # What has threads, as a worker of pytest has, cannot be forked.
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    process = processes.Process(target=_act_until, args=(step, root, action))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("action", ["overwrite", "delete"])
def test_an_object_is_whole_however_it_is_killed(
    tmp_path: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before any line: the object is the old one or the new one, with its content and properties; and
    the same request succeeds afterwards."""
    monkeypatch.setattr(os, "fsync", _do_not_wait)
    for step in range(1, 1000):
        root = tmp_path / str(step)
        store = ObjectStore(root)
        store.catalog.create(BUCKET)
        old = put(store, "x", b"one", draft=_TYPED).generation
        store.close()

        if not _killed_at(step, root, action):
            break
        after = ObjectStore(root)
        after.clean()
        if (live := _live(after)) is None:
            assert action == "delete"
        else:
            assert get(after, "x") == (b"one" if live == old else b"two")
        if action == "overwrite":
            put(after, "x", b"three")
            assert get(after, "x") == b"three"
        elif live is not None:
            after.delete(ObjectRef(BUCKET, "x"))
            assert _live(after) is None
        after.close()
    else:
        pytest.fail("the work never ended")
    assert step > 10


def _do_not_wait(_: int) -> None:
    """In place of a sync."""


def _live(store: ObjectStore) -> int | None:
    try:
        record = store.read_record(ObjectRef(BUCKET, "x"))
    except NotFound:
        return None
    assert record.fields == _TYPED.fields
    return record.generation
