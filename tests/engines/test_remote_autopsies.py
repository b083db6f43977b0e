"""What failed replicas left on nodes is brought home, whole or not at all (docs/adr/0025)."""

import io
import os
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.engines.remote_lab import AUTOPSY_LIMIT, RemoteLab
from tests.ports import free_port
from trainshed.core.launch import LaunchPlan
from trainshed.core.names import JobUid
from trainshed.engines.conformance.lab import Program
from trainshed.engines.conformance.stage import PRIMARY, Stage, staged
from trainshed.engines.conformance.suite import Conformance
from trainshed.engines.terminals import Terminals
from trainshed_cluster.remote.autopsies import without_secrets
from trainshed_cluster.remote.content.frames import Torn
from trainshed_cluster.remote.content.homecoming import FilesLeft

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: its nodes need root")


@pytest.fixture
def lab(tmp_path: Path) -> RemoteLab:
    return RemoteLab(tmp_path, free_port(), keeps=True)


@needs_root
def test_the_suite_holds_for_what_was_brought_home(lab: RemoteLab) -> None:
    Conformance().test_what_a_failed_replica_left_is_kept_and_shown(lab)


@needs_root
def test_what_is_too_much_or_of_a_lost_node_is_left_and_the_attempt_given_back(
    lab: RemoteLab, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(_: object, stage: Stage) -> None:
        assert isinstance(stage.engine, Terminals)
        for left in ("x" * (AUTOPSY_LIMIT + 1), "y"):
            uid = await stage.run(Program(leaves=left, code=3))
            await stage.exited(uid)
            if left == "y":
                lab.end_agents((await stage.allocate(uid))[0].node)
            await stage.engine.release(uid, 1)
            stage.forget(uid)
            assert stage.engine.autopsies(uid) == ()
        assert await stage.engine.allocations() == ()
        logged = [record.getMessage() for record in caplog.records]
        assert any("more than the 0.1 MB that are taken" in text for text in logged), logged
        assert sum("autopsy not kept" in text for text in logged) == 2

    staged(body)(None, lab)


def tar_of(*members: tarfile.TarInfo) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return io.BytesIO(made.getvalue())


def member(name: str, size: int = 0, **more: object) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.size = size
    for key, value in more.items():
        setattr(made, key, value)
    return made


@pytest.mark.parametrize(
    ("members", "cause"),
    [
        ([member("../out")], "is no place in it"),
        ([member("/etc/out")], "is no place in it"),
        ([member("a", type=tarfile.SYMTYPE, linkname="/tmp"), member("a/b")], "is no place in it"),
        ([member("a", type=tarfile.LNKTYPE, linkname="/etc/passwd")], "is no file in it"),
        ([member("a", type=tarfile.BLKTYPE)], "neither file, directory nor link"),
        ([member("a", 60), member("b", 60)], "more than was to be sent"),
        ([member("a", 1), member("a", 1)], "is no place in it"),
    ],
)
def test_nothing_is_written_that_a_node_has_no_business_with(
    tmp_path: Path, members: list[tarfile.TarInfo], cause: str
) -> None:
    with pytest.raises(Torn, match=cause):
        FilesLeft(tmp_path / "files", 100).take(tar_of(*members))
    assert sorted(path.name for path in tmp_path.rglob("*")) in (["files"], ["a", "files"])


def test_files_come_whole_and_are_who_unpacks_them(tmp_path: Path) -> None:
    members = [
        member("work", type=tarfile.DIRTYPE, mode=0),
        member("work/tool", 3, mode=0o6711, uid=4711, gid=4711),
        member("work/link", type=tarfile.SYMTYPE, linkname="/etc/passwd"),
    ]
    FilesLeft(tmp_path / "files", 100).take(tar_of(*members))
    tool = (tmp_path / "files/work/tool").stat()
    assert (tool.st_uid, tool.st_mode & 0o7777, tool.st_size) == (os.geteuid(), 0o711, 3)
    assert (tmp_path / "files/work/link").readlink() == Path("/etc/passwd")
    cut = io.BytesIO(tar_of(*members).getvalue()[:1800])
    with pytest.raises(Torn, match="ends too early"):
        FilesLeft(tmp_path / "again", 100).take(cut)


def test_a_plan_is_noted_without_its_secrets() -> None:
    plan = LaunchPlan(
        JobUid(1),
        1,
        PRIMARY,
        1,
        argv=("train", "--steps=3"),
        environ=(("EPOCHS", "7"), ("API_TOKEN", "hush-hush")),
        hostname="a",
        address="",
        hosts=(),
    )
    noted = without_secrets(plan)
    assert dict(noted.environ) == {"EPOCHS": "7", "API_TOKEN": "(redacted)"}
    assert noted == replace(plan, environ=noted.environ)
