"""The users of a project's jobs on Slurm: `users` and `accounts` of `[engines.slurm]` (docs/slurm.md)."""

import getpass
import os
import pwd

import pytest

from trainshed_cluster.remote.cluster import ClusterRefused, Owner
from trainshed_cluster.slurm import users
from trainshed_cluster.slurm.settings import SlurmSettings, parse
from trainshed_cluster.slurm.users import UnixUser, Users, node_directory

pytestmark = pytest.mark.anyio

ME = pwd.getpwuid(os.geteuid()).pw_name
VISION = UnixUser("vision", 61001, 61002, "/home/vision")


@pytest.fixture(autouse=True)
def _define_user(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """The user database contains a user that is not on this machine."""

    def look_up(name: str) -> UnixUser:
        if name == VISION.name:
            return VISION
        return real(name)

    real = users.look_up
    monkeypatch.setattr(users, "look_up", look_up)


async def test_jobs_run_as_the_service_user_by_default() -> None:
    assert await Users(SlurmSettings()).owner("any") == Owner()
    paid = Users(SlurmSettings(accounts={"vision": "gpu-v", "*": "rest"}))
    assert await paid.owner("vision") == Owner(account="gpu-v")
    assert await paid.owner("speech") == Owner(), "the default applies to projects without an entry"


async def test_jobs_of_projects_without_a_configured_unix_user_are_rejected() -> None:
    users = Users(SlurmSettings(users={"vision": "vision", "own": ME}, accounts={"vision": "v"}))
    assert await users.load() == ()
    assert await users.owner("vision") == Owner("vision", "v")
    assert await users.owner("own") == Owner()
    with pytest.raises(ClusterRefused, match="jobs of project speech have no user"):
        await users.owner("speech")
    assert {os.geteuid(), 61001} == set(users.uids)
    assert (users.name_of(os.geteuid()), users.name_of(61001), users.name_of(4)) == ("", "vision", None)


async def test_two_names_of_the_same_unix_user_map_to_the_same_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm identifies a job's user only by number."""
    alias = UnixUser("video", VISION.uid, VISION.gid, VISION.home)
    monkeypatch.setattr(users, "look_up", {"vision": VISION, "video": alias}.__getitem__)
    both = Users(SlurmSettings(users={"vision": "vision", "video": "video"}))
    assert await both.load() == ()
    assert await both.owner("video") == Owner("vision")


async def test_missing_unix_user_is_reported_with_a_command_to_check() -> None:
    users = Users(SlurmSettings(users={"*": "no-such-user"}))
    assert await users.load() == ("no-such-user",)
    with pytest.raises(ClusterRefused, match="getent passwd no-such-user"):
        await users.owner("vision")
    with pytest.raises(ClusterRefused, match="no-such-user no longer"):
        await users.user_of("no-such-user")


def test_command_run_as_another_user_gets_no_environment_variables_of_the_service() -> None:
    ambient = {"PATH": "/bin", "LC_ALL": "C", "TRAINSHED_SECRETS_KEY": "x", "HOME": "/root"}
    assert VISION.environment(ambient) == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "HOME": "/home/vision",
        "USER": "vision",
        "LOGNAME": "vision",
    }
    assert VISION.command(["/usr/bin/salloc", "-n1"], "/usr/bin/setpriv") == [
        *("/usr/bin/setpriv", "--reuid=61001", "--regid=61002", "--init-groups", "--"),
        *("/usr/bin/salloc", "-n1"),
    ]


def test_each_user_has_a_separate_node_directory() -> None:
    plain = SlurmSettings()
    assert node_directory(plain, None) == f"/tmp/trainshed-{os.geteuid()}"
    assert node_directory(plain, VISION) == "/tmp/trainshed-61001"
    scratch = SlurmSettings(directory="/scratch/{user}/trainshed-{uid}")
    assert node_directory(scratch, VISION) == "/scratch/vision/trainshed-61001"
    assert node_directory(scratch, None) == f"/scratch/{ME}/trainshed-{os.geteuid()}"


def test_impossible_user_settings_are_rejected_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"users": {"vision": "daemon", "*": getpass.getuser()}, "directory": "/scratch/agents"}
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(ValueError) as caught:
        parse(table)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3, lines
    assert "only a service of root can run jobs as other users" in lines[0]
    assert "shared = true" in lines[1]
    assert "add {user} or {uid} to it" in lines[2]
    with pytest.raises(ValueError, match=r"\{home\} has no value"):
        parse({"directory": "/scratch/{home}"})
    monkeypatch.undo()
    assert parse({"users": {"*": ME}, "directory": "/scratch/agents"}).users == {"*": ME}


def test_all_invalid_entries_of_project_tables_are_reported() -> None:
    with pytest.raises(ValueError) as caught:
        parse({"users": {"a/b": "x"}, "accounts": {"vision": "two words"}})
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "[engines.slurm] users",
        "[engines.slurm] accounts.vision",
    ]
