"""Which Unix user's a project's jobs are on a Slurm cluster, and how a command is run as him.

Root gives its rights up before Slurm's command begins (setpriv), so that to munge, and to Slurm, it is that
user's: `--uid` of salloc and srun, which did the same, is not there any more in newer versions.
"""

import asyncio
import functools
import os
import pwd
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainshed.engines.remote.cluster import ClusterRefused, Owner
from trainshed.engines.slurm.settings import SlurmSettings

_KEPT = ("PATH", "SLURM_CONF", "SLURM_TIME_FORMAT", "LC_ALL")
"""All that a user's command is given of the service's environment: he may read what his processes were
given."""


@dataclass(frozen=True, slots=True)
class Person:
    """A Unix user, as this machine knows him."""

    name: str
    uid: int
    gid: int
    home: str

    def command(self, argv: Sequence[str], setpriv: str) -> list[str]:
        """What runs `argv` as him, where root begins it. `setpriv`: path of that command."""
        own = f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"
        return [setpriv, *own, "--", *argv]

    def environment(self, ambient: Mapping[str, str]) -> dict[str, str]:
        """Of such a command."""
        kept = {name: ambient[name] for name in _KEPT if name in ambient}
        return {**kept, "HOME": self.home, "USER": self.name, "LOGNAME": self.name}


@functools.cache
def look_up(name: str) -> Person:
    """Raises KeyError: this machine does not know him. Blocks: it may ask a directory service."""
    found = pwd.getpwnam(name)
    return Person(found.pw_name, found.pw_uid, found.pw_gid, found.pw_dir)


def setpriv() -> str:
    """Path of the command. Raises FileNotFoundError."""
    found = shutil.which("setpriv", path=f"{os.environ.get('PATH', os.defpath)}:/usr/bin:/bin")
    if not found:
        raise FileNotFoundError(
            "there is no command setpriv (Debian: util-linux), by which jobs are run as other users"
        )
    return found


def for_project(table: Mapping[str, str], project: str) -> str | None:
    """What a table of projects says of one; `*` stands for all that it does not name."""
    return table.get(project, table.get("*"))


def node_directory(settings: SlurmSettings, person: Person | None) -> str:
    """Where a user's agents and programs write on nodes. `person`: None = the service's user."""
    uid = person.uid if person else os.geteuid()
    if not settings.directory:
        return f"/tmp/trainshed-{uid}"
    if "{" not in settings.directory:
        return settings.directory
    name = person.name if person else pwd.getpwuid(uid).pw_name
    return settings.directory.replace("{uid}", str(uid)).replace("{user}", name)


class Users:
    """Those whom one cluster's jobs are run as."""

    def __init__(self, settings: SlurmSettings) -> None:
        self._settings = settings
        self._own = os.geteuid()
        self._known: dict[str, Person] = {}

    @property
    def uids(self) -> tuple[int, ...]:
        """All whose jobs may be this service's."""
        return self._own, *(person.uid for person in self._known.values())

    async def load(self) -> tuple[str, ...]:
        """Look all of them up; those whom this machine does not know."""
        names = dict.fromkeys(self._settings.users.values())
        return tuple([name for name in names if not await self._find(name)])

    async def owner(self, project: str) -> Owner:
        """Raises ClusterRefused."""
        account = for_project(self._settings.accounts, project) or ""
        if not self._settings.users:
            return Owner(account=account)
        name = for_project(self._settings.users, project)
        if name is None:
            raise ClusterRefused(
                f"no user is named whom jobs of project {project} run as: [engines.slurm.users] names some "
                'projects; add this one, or "*" for all others'
            )
        person = await self._find(name)
        if person is None:
            raise ClusterRefused(
                f"jobs of project {project} run as {name} ([engines.slurm.users]), and the service's machine "
                f"knows no such user: `getent passwd {name}` has to find him there and on the nodes"
            )
        return Owner("" if person.uid == self._own else person.name, account)

    async def person(self, name: str) -> Person | None:
        """Whom `Owner.user` stands for; None = the service's own user. Raises ClusterRefused: he is gone."""
        if not name:
            return None
        person = await self._find(name)
        if person is None:
            raise ClusterRefused(f"the service's machine knows no user {name} any more")
        return person

    def name_of(self, uid: int) -> str | None:
        """As `Owner.user` has it; None = nobody of them."""
        if uid == self._own:
            return ""
        return next((one.name for one in self._known.values() if one.uid == uid), None)

    async def _find(self, name: str) -> Person | None:
        if name not in self._known:
            try:
                self._known[name] = await asyncio.to_thread(look_up, name)
            except KeyError:
                return None
        return self._known[name]
