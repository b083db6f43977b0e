"""Tests of the records of programs' starts: shims write them, and the store reads them
(spec/program#launches)."""

import json
from pathlib import Path

import pytest

from trainshed.core.names import JobUid, ReplicaId
from trainshed.core.streams import StreamSource
from trainshed.engines.streams import FileStreams
from trainshed.replica import protocol
from trainshed.replica.observe.masking import Mask
from trainshed.replica.supervisor.sidecars import LAUNCHES, note_launch
from trainshed.store.logs.reader import read_launches

UID, PRIMARY = JobUid(7), ReplicaId(0, 0)


def plan(logs: Path, incarnation: int = 1, **environ: str) -> protocol.LaunchDocument:
    """Return the launch document of a program, one of whose arguments may be secret."""
    return protocol.LaunchDocument(
        incarnation=incarnation,
        program=protocol.Program(
            argv=["python3", "-c", "x" * 20_000, "--key=hunter22"],
            environ={"RANK": "0", "MODE": "fast", **environ},
        ),
        isolation=protocol.Isolation(level=protocol.LEVEL_USER, hostname="h-0", users=(70_000, 9)),
        limits=protocol.Limits(memory_limit=1 << 30, pids_limit=100),
        network=protocol.Network(address="127.1.2.3"),
        observation=protocol.Observation(logs=str(logs), gpus=["GPU-1"]),
    )


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return the directory of the primary's streams."""
    directory = FileStreams(tmp_path).directory(StreamSource(UID, 1, PRIMARY))
    directory.mkdir(parents=True)
    return directory


def test_launch_record_of_each_incarnation_is_read_as_written(tmp_path: Path, logs: Path) -> None:
    for number in (1, 2):
        note_launch(plan(logs, number), number * 10**9, None)
    streams = FileStreams(tmp_path)
    first, second = read_launches([streams], UID, 1, PRIMARY)
    assert (first.incarnation, second.incarnation, second.at) == (1, 2, 2 * 10**9)
    assert second.argv[:2] == ("python3", "-c")
    assert second.names == ("MODE", "RANK")
    assert second.values == {"RANK": "0"}, "what only the job knows the meaning of is not kept"
    assert (second.hostname, second.address, second.level) == ("h-0", "127.1.2.3", "user")
    assert (second.user, second.memory, second.processes) == (70_000, 1 << 30, 100)
    assert second.gpus == ("GPU-1",)
    assert read_launches([streams], UID, 2, PRIMARY) == ()
    assert read_launches([streams], UID, 1, ReplicaId(1, 0)) == ()


def test_launch_record_masks_secrets_and_shortens_long_arguments(tmp_path: Path, logs: Path) -> None:
    secret = plan(logs, TF_CONFIG='{"token": "hunter22"}', KEY="hunter22")
    note_launch(secret, 1, Mask(("hunter22",)))
    assert "hunter22" not in (logs / LAUNCHES).read_text()
    (launch,) = read_launches([FileStreams(tmp_path)], UID, 1, PRIMARY)
    assert launch.argv[3] == "--key=***"
    assert len(launch.argv[2]) == (16 << 10) + 1
    assert launch.argv[2].endswith("x…")
    assert json.loads(launch.values["TF_CONFIG"]) == {"token": "***"}
    note_launch(plan(logs), 2, Mask(("x" * 20_000,)))
    assert "xx" not in (logs / LAUNCHES).read_text().splitlines()[1], "though it is longer"


def test_unwritable_launch_record_is_skipped(tmp_path: Path, logs: Path) -> None:
    note_launch(plan(tmp_path / "nowhere"), 1, None)
    note_launch(plan(logs), 1, None)
    with (logs / LAUNCHES).open("ab") as file:
        file.write(b'{"torn": \n{"incarnation": 2')
    (launch,) = read_launches([FileStreams(tmp_path)], UID, 1, PRIMARY)
    assert launch.incarnation == 1
