"""Declares and checks the settings of the Slurm engine: the table `[engines.slurm]`."""

import os
import pwd
import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from trainshed_cluster.remote.lease import SHORTEST_LEASE
from trainshed_cluster.remote.options import (
    ForMachines,
    parse_table,
    unknown_accelerators,
    wrong_machines,
)


def _text(pattern: str, what: str) -> msgspec.Meta:
    """Constrain a text to a pattern. `what`: description of the valid form, which messages continue with."""
    return msgspec.Meta(pattern=pattern, description=what)


_Word = Annotated[
    str,
    _text(r"^[A-Za-z0-9_.,@+-]{0,200}$", "a name as Slurm has it, of letters, digits and _.,@+-"),
]
_Directory = Annotated[
    str, _text(r"^(/[^\x00-\x1f]{0,500})?$", "an absolute path, which begins with /")
]
_Argument = Annotated[
    str, _text(r"^--[a-z][a-z-]+(=[^\x00-\x1f]{1,500})?$", "an option as --NAME or --NAME=VALUE")
]

_OURS = (
    *(
        "job-name",
        "comment",
        "nodes",
        "nodelist",
        "ntasks-per-node",
        "cpus-per-task",
        "mem",
        "gres",
    ),
    *("no-shell", "no-kill", "ntasks", "mem-per-cpu", "exclusive", "chdir", "uid", "gid", "user"),
    *("immediate", "begin", "dependency"),
)
"""Options of salloc that the engine gives itself, or that would break what it promises."""

_Constraint = Annotated[
    str,
    _text(
        r"^[A-Za-z0-9_.,@+&|()\[\]*:-]{0,500}$",
        "features as salloc --constraint has them, such as ib&ssd",
    ),
]
_ADDRESS = "a host's name or address, without a port"
_Address = Annotated[str, _text(r"^[A-Za-z0-9_.:-]{0,253}$", _ADDRESS)]
_Arguments = Annotated[list[_Argument], msgspec.Meta(max_length=50)]
_Gres = Annotated[
    str, _text(r"^([A-Za-z0-9_-]+(:[A-Za-z0-9_.-]+)?)?$", "NAME or NAME:TYPE, without a count")
]
_Project = Annotated[str, _text(r"^[^/\x00-\x20]{1,100}$", "a project's id, or *")]
_User = Annotated[str, _text(r"^[A-Za-z_][A-Za-z0-9_.@-]{0,63}\$?$", "the name of a Unix user")]
_Account = Annotated[
    str, _text(r"^[A-Za-z0-9_.@+-]{1,200}$", "an account's name, of letters, digits and _.@+-")
]
_Users = dict[_Project, _User]
_Accounts = dict[_Project, _Account]


class MachineRoute(ForMachines, frozen=True, forbid_unknown_fields=True):
    """An entry of `[[engines.slurm.machines]]`: where jobs of some machine types go. None = as in the plain
    settings."""

    partition: _Word | None = None
    account: _Word | None = None
    qos: _Word | None = None
    constraint: _Constraint | None = None
    #: NAME or NAME:TYPE of its one accelerator type there; None = `gpu` of the type that `accelerators` of
    #: the plain settings says.
    gres: _Gres | None = None
    extra: _Arguments | None = None


class SlurmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[engines.slurm]`."""

    #: Name or address at which nodes reach the service; None = this machine's name.
    address: _Address | None = None
    #: Port of that; 0 = any that is free.
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    #: One partition, or several separated by commas; "" = Slurm's default one.
    partition: _Word = ""
    #: Unix user of jobs by project id ("*" = all others); {} = the service's own for all. Jobs of a project
    #: without an entry are refused.
    users: _Users = {}
    #: Slurm account by project id ("*" = all others); the one of a project that is named wins over
    #: `machines`.
    accounts: _Accounts = {}
    qos: _Word = ""
    #: Features that nodes must have, in the syntax of salloc's --constraint.
    constraint: _Constraint = ""
    #: Further arguments of salloc, each of the form --NAME or --NAME=VALUE.
    extra: _Arguments = []
    #: Slurm's type of gpu for each public accelerator type; "" = one without a type.
    accelerators: dict[str, _Word] = {}
    #: Where jobs of some machine types go instead; the first match counts.
    machines: Annotated[list[MachineRoute], msgspec.Meta(max_length=200)] = []
    #: Directory on the nodes' own disks where agents and their programs write; None = /tmp/trainshed-UID.
    #: {user} and {uid} in it stand for the user of the jobs.
    directory: _Directory | None = None
    #: Interpreter on nodes that has this package; None = the path of the service's own.
    python: _Directory | None = None
    #: Nodes see the service's data directory at the same path.
    shared: bool = False
    #: Seconds without contact after which an agent ends its programs, which are then lost. The service may be
    #: away for that long. It counts for attempts that begin after it was set.
    lease: Annotated[float, msgspec.Meta(ge=SHORTEST_LEASE, le=86400)] = 180.0
    #: Seconds for which the nodes of a finished attempt are kept for another one with the same needs; two at
    #: least, for a retry or the job that is next.
    keep: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    #: Whose queue jobs wait in: "trainshed" gives them nodes that are free; "slurm" asks for whatever the
    #: quotas allow, on nodes that Slurm chooses.
    queue: Literal["trainshed", "slurm"] = "trainshed"
    #: File of Slurm's configuration; None = where its commands look for it.
    conf: _Directory | None = None
    #: Directory of Slurm's commands; None = on the PATH.
    commands: _Directory | None = None

    @property
    def any_account(self) -> str:
        """The account of projects that `accounts` does not name; "" = Slurm's default one."""
        return self.accounts.get("*", "")

    def require_commands(self) -> None:
        """Raise FileNotFoundError if one of Slurm's commands that the engine runs is missing."""
        for name in ("salloc", "srun", "squeue", "sinfo", "scancel"):
            self.command(name)

    def command(self, name: str) -> str:
        """Return the path of one of Slurm's commands. Raises FileNotFoundError."""
        path = shutil.which(name, path=self.commands)
        if not path:
            where = self.commands or f"the PATH ({os.environ.get('PATH', os.defpath)})"
            raise FileNotFoundError(
                f"there is no command {name} in {where}: install Slurm's client commands (Debian: "
                "slurm-client), or say where they are in [engines.slurm] commands"
            )
        return path


def parse(table: Mapping[str, Any]) -> SlurmSettings:
    """Parse the table. Raises ValueError with everything that is wrong with it, one line each."""
    return parse_table("slurm", SlurmSettings, table, _wrong)


def _wrong(settings: SlurmSettings) -> list[str]:
    return [
        *_wrong_extra(settings.extra),
        *_wrong_accelerators(settings),
        *_wrong_machines(settings),
        *_wrong_users(settings),
    ]


def _wrong_users(settings: SlurmSettings) -> list[str]:
    """Return what is wrong with `users`, and with `directory` for them."""
    wrong: list[str] = []
    fields = re.findall(r"\{[^{}]{0,100}\}?", settings.directory or "")
    strange = sorted({*fields} - {"{user}", "{uid}"})
    wrong += [
        f"directory: {field} stands for nothing; there are {{user}} and {{uid}}"
        for field in strange
    ]
    others = sorted({name for name in settings.users.values() if not is_own(name)})
    if not others:
        return wrong
    names = ", ".join(others[:5])
    if os.geteuid():
        wrong.append(
            f"users: only a service of root can run jobs as others ({names}); run it as root, or a service "
            "for each user"
        )
    if not settings.shared:
        wrong.append(
            f"users: what jobs of others ({names}) run in has to lie where they may read it and not write, "
            "at the same path on nodes: on a shared file system (shared = true)"
        )
    if settings.directory and "{" not in settings.directory:
        wrong.append(
            f"directory: {settings.directory} cannot be that of several users ({names}) and safe from each "
            "other; put {user} or {uid} into it"
        )
    return wrong


def is_own(name: str) -> bool:
    try:
        return pwd.getpwnam(name).pw_uid == os.geteuid()
    except KeyError:
        return False


def _wrong_extra(extra: Iterable[str], at: str = "") -> list[str]:
    options = [re.split("=", argument.removeprefix("--"), maxsplit=1)[0] for argument in extra]
    own = {"partition", "account", "qos", "constraint"}
    return [
        *(f"{at}extra: --{name} is the engine's own to give" for name in options if name in _OURS),
        *(
            f"{at}extra: --{name} has a setting of its own, {name}"
            for name in options
            if name in own
        ),
    ]


def _wrong_accelerators(settings: SlurmSettings) -> list[str]:
    wrong = [f"accelerators: {line}" for line in unknown_accelerators(settings.accelerators)]
    types = list(settings.accelerators.values())
    for name in sorted({name for name in types if types.count(name) > 1}):
        wrong.append(f"accelerators: {name!r} stands for more than one accelerator type")
    return wrong


def _wrong_machines(settings: SlurmSettings) -> list[str]:
    wrong = wrong_machines(settings.machines, "slurm")
    kinds = {("gpu", kind): name for name, kind in settings.accelerators.items()}
    for number, machine in enumerate(settings.machines):
        at = f"machines[{number}]."
        wrong += _wrong_extra(machine.extra or (), at)
        if not machine.gres:
            continue
        if len(machine.accelerators) != 1:
            wrong.append(
                f"{at}gres: {machine.gres!r} stands for one accelerator type; accelerators must name "
                "it, alone"
            )
            continue
        name, _, kind = machine.gres.partition(":")
        public = kinds.setdefault((name, kind), machine.accelerators[0])
        if public != machine.accelerators[0]:
            wrong.append(f"{at}gres: {machine.gres!r} stands for {public} already")
    return wrong
