"""Finds the Unix users of a Slurm cluster's jobs, and runs commands as these users.

A service that runs as root drops its rights with setpriv before a command of Slurm starts. The authentication
service of Slurm, munge, then identifies the caller as that user. The options `--uid` of salloc and srun are
not used, because newer versions lack them.
"""

import asyncio
import functools
import os
import pwd
import shutil
from collections.abc import Mapping, Sequence

from msgspec import Struct

from trainshed_cluster.remote.cluster import ClusterRefused, Owner
from trainshed_cluster.slurm.settings import SlurmSettings

_PASSED_VARIABLES = ("PATH", "SLURM_CONF", "SLURM_TIME_FORMAT", "LC_ALL")
"""The only variables of the service that a command of another user receives. Users can read the environment
of their processes, so these variables must contain no secrets."""


class UnixUser(Struct, frozen=True):
    """A user in this machine's user database."""

    name: str
    uid: int
    gid: int
    home: str

    def command(self, argv: Sequence[str], setpriv: str) -> list[str]:
        """Return the command that root executes to run `argv` as this user. `setpriv`: path of the command
        setpriv."""
        own = f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"
        return [setpriv, *own, "--", *argv]

    def environment(self, ambient: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a command that runs as this user. `ambient`: the service's own
        environment."""
        kept = {name: ambient[name] for name in _PASSED_VARIABLES if name in ambient}
        return {**kept, "HOME": self.home, "USER": self.name, "LOGNAME": self.name}


@functools.cache
def look_up(name: str) -> UnixUser:
    """Look up a user by name. May block, because it may query a directory service. Raises KeyError if the
    user does not exist."""
    entry = pwd.getpwnam(name)
    return UnixUser(entry.pw_name, entry.pw_uid, entry.pw_gid, entry.pw_dir)


def setpriv() -> str:
    """Return the path of the command setpriv. Raises FileNotFoundError if the command does not exist."""
    path = shutil.which("setpriv", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/bin")
    if not path:
        raise FileNotFoundError(
            "the command setpriv, which runs jobs as other users, is missing; install it (Debian: util-linux)"
        )
    return path


def node_directory(settings: SlurmSettings, user: UnixUser | None) -> str:
    """Return the directory on nodes for the files of a user's agents and programs. `user`: None = the
    service's user."""
    uid = user.uid if user else os.geteuid()
    if not settings.directory:
        return f"/tmp/trainshed-{uid}"
    if "{" not in settings.directory:
        return settings.directory
    name = user.name if user else pwd.getpwuid(uid).pw_name
    return settings.directory.replace("{uid}", str(uid)).replace("{user}", name)


class Users:
    """The Unix users of one cluster's jobs."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._own = os.geteuid()
        self._known: dict[str, UnixUser] = {}

    @property
    def uids(self) -> tuple[int, ...]:
        return self._own, *(user.uid for user in self._known.values())

    async def load(self) -> tuple[str, ...]:
        """Look up the users in the settings. Returns the names that do not exist on this machine."""
        names = dict.fromkeys(self._settings.users.values())
        return tuple([name for name in names if not await self._find(name)])

    async def owner(self, project: str) -> Owner:
        """Return the owner of the allocations of a project's jobs: a Unix user and a cluster account. Raises
        ClusterRefused if the project has no user, or if that user does not exist."""
        account = self._settings.accounts.get(project)
        if not self._settings.users:
            return Owner(account=account)
        users = self._settings.users
        name = users.get(project, users.get("*"))
        if name is None:
            raise ClusterRefused(
                f"jobs of project {project} have no user: [engines.slurm.users] has entries for some "
                'projects; add this one, or "*" for all others'
            )
        user = await self._find(name)
        if user is None:
            raise ClusterRefused(
                f"jobs of project {project} run as {name} ([engines.slurm.users]), who does not exist on "
                f"the service's machine: `getent passwd {name}` must find the user there and on the nodes"
            )
        # If several names have this user id, use the name that allocation names contain.
        return Owner(self.name_of(user.uid) or "", account)

    async def user_of(self, name: str) -> UnixUser | None:
        """Return the user whose name is stored in `Owner.user`; None = the service's own user. Raises
        ClusterRefused if the user no longer exists."""
        if not name:
            return None
        user = await self._find(name)
        if user is None:
            raise ClusterRefused(
                f"user {name} no longer exists on the service's machine; create the user again"
            )
        return user

    def name_of(self, uid: int) -> str | None:
        """Return the name that `Owner.user` contains for a user id; None = no job runs as that user."""
        if uid == self._own:
            return ""
        return next((user.name for user in self._known.values() if user.uid == uid), None)

    async def _find(self, name: str) -> UnixUser | None:
        if name not in self._known:
            try:
                self._known[name] = await asyncio.to_thread(look_up, name)
            except KeyError:
                return None
        return self._known[name]
