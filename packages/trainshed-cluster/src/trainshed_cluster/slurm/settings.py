"""Declares and checks the settings of the Slurm engine: the table `[engines.slurm]`."""

import os
import pwd
import re
import shutil
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec

from trainshed_cluster.remote.lease import MIN_LEASE
from trainshed_cluster.remote.options import (
    MachineSelector,
    parse_table,
    unknown_accelerators,
    wrong_machines,
)


def _text(pattern: str, what: str) -> msgspec.Meta:
    """Return the constraint that a text matches a pattern. `what`: description of valid texts, for error
    messages."""
    return msgspec.Meta(pattern=pattern, description=what)


_Word = Annotated[
    str, _text(r"^[A-Za-z0-9_.,@+-]{0,200}$", "a name of Slurm with letters, digits and _.,@+-")
]
_Directory = Annotated[str, _text(r"^(/[^\x00-\x1f]{0,500})?$", "an absolute path, which begins with /")]
_Argument = Annotated[
    str, _text(r"^--[a-z][a-z-]+(=[^\x00-\x1f]{1,500})?$", "an option of the form --NAME or --NAME=VALUE")
]

_RESERVED_OPTIONS = (
    *("job-name", "comment", "nodes", "nodelist", "ntasks-per-node", "cpus-per-task", "mem", "gres"),
    *("no-shell", "no-kill", "ntasks", "mem-per-cpu", "exclusive", "chdir", "uid", "gid", "user"),
    *("immediate", "begin", "dependency"),
)
"""Options of salloc that users cannot set: either the engine sets the option itself, or the option would
break a guarantee of the engine."""

_Constraint = Annotated[
    str,
    _text(
        r"^[A-Za-z0-9_.,@+&|()\[\]*:-]{0,500}$",
        "features in the syntax of salloc --constraint, such as ib&ssd",
    ),
]
_ADDRESS = "a host's name or address, without a port"
_Address = Annotated[str, _text(r"^[A-Za-z0-9_.:-]{0,253}$", _ADDRESS)]
_Arguments = Annotated[list[_Argument], msgspec.Meta(max_length=50)]
_Gres = Annotated[str, _text(r"^([A-Za-z0-9_-]+(:[A-Za-z0-9_.-]+)?)?$", "NAME or NAME:TYPE, without a count")]
_Project = Annotated[str, _text(r"^[^/\x00-\x20]{1,100}$", "a project's id, or *")]
_User = Annotated[str, _text(r"^[A-Za-z_][A-Za-z0-9_.@-]{0,63}\$?$", "the name of a Unix user")]
_Account = Annotated[
    str, _text(r"^[A-Za-z0-9_.@+-]{1,200}$", "an account's name, of letters, digits and _.@+-")
]
_Users = dict[_Project, _User]
_Accounts = dict[_Project, _Account]


class MachineRoute(MachineSelector, frozen=True, forbid_unknown_fields=True):
    """An entry of `[[engines.slurm.machines]]`: the options of jobs for some machine types. A field that is
    None has its value from `[engines.slurm]`."""

    partition: _Word | None = None
    account: _Word | None = None
    qos: _Word | None = None
    constraint: _Constraint | None = None
    #: NAME or NAME:TYPE of the generic resource (GRES) for the accelerator type of these machines; None = the
    #: GRES `gpu` with the type in `[engines.slurm.accelerators]`.
    gres: _Gres | None = None
    extra: _Arguments | None = None


class SlurmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[engines.slurm]`."""

    #: Name or address at which nodes reach the service; None = the name of the service's machine.
    address: _Address | None = None
    #: Port of this service to which nodes connect; 0 = any free port.
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    #: One partition, or several separated by commas; "" = Slurm's default partition.
    partition: _Word = ""
    #: Unix user of jobs by project id ("*" = all other projects); {} = the service's own user. Jobs of a
    #: project without an entry are rejected.
    users: _Users = {}
    #: Slurm account by project id ("*" = all other projects). An entry for a project has priority over
    #: `machines`.
    accounts: _Accounts = {}
    qos: _Word = ""
    #: Features that nodes must have, in the syntax of salloc's --constraint.
    constraint: _Constraint = ""
    #: Further arguments of salloc, each of the form --NAME or --NAME=VALUE.
    extra: _Arguments = []
    #: Slurm's type of the GRES `gpu` for each public accelerator type; "" = GPUs without a type.
    accelerators: dict[str, _Word] = {}
    #: Different options for some machine types; the first match applies.
    machines: Annotated[list[MachineRoute], msgspec.Meta(max_length=200)] = []
    #: Directory on the nodes' own disks for the files of agents and programs; None = /tmp/trainshed-UID. The
    #: service replaces {user} and {uid} with the name and the id of the jobs' user.
    directory: _Directory | None = None
    #: Path of a Python interpreter on nodes that can import this package; None = the path of the service's
    #: own interpreter.
    python: _Directory | None = None
    #: Whether nodes share the service's data directory, at the same path.
    shared: bool = False
    #: Seconds without contact to the service after which an agent ends its programs. The service then counts
    #: the programs as lost. A change applies only to new attempts.
    lease: Annotated[float, msgspec.Meta(ge=MIN_LEASE, le=86400)] = 180.0
    #: Seconds to keep the nodes of a finished attempt for another attempt with the same needs, for example a
    #: retry or the next job. Values below 2 count as 2.
    keep: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 0.0
    #: "trainshed" = the service queues jobs and requests free nodes for them; "slurm" = jobs wait in Slurm's
    #: queue if their quotas allow it, and Slurm chooses the nodes.
    queue: Literal["trainshed", "slurm"] = "trainshed"
    #: Slurm's configuration file; None = the default of Slurm's commands.
    conf: _Directory | None = None
    #: Directory of Slurm's commands; None = the commands are on the PATH.
    commands: _Directory | None = None

    @property
    def any_account(self) -> str:
        """Return the account of projects that have no entry in `accounts`; "" = Slurm's default account."""
        return self.accounts.get("*", "")

    def require_commands(self) -> None:
        """Raise FileNotFoundError if a required command of Slurm is missing."""
        for name in ("salloc", "srun", "squeue", "sinfo", "scancel"):
            self.command(name)

    def command(self, name: str) -> str:
        """Return the path of a command of Slurm. Raises FileNotFoundError if the command does not exist."""
        path = shutil.which(name, path=self.commands)
        if not path:
            where = self.commands or f"the PATH ({os.environ.get('PATH', os.defpath)})"
            raise FileNotFoundError(
                f"the command {name} is not in {where}: install Slurm's client commands (Debian: "
                "slurm-client), or set their directory in [engines.slurm] commands"
            )
        return path


def parse(table: Mapping[str, Any]) -> SlurmSettings:
    """Parse the table. Raises ValueError with all errors, one per line."""
    return parse_table("slurm", SlurmSettings, table, _wrong)


def _wrong(settings: SlurmSettings) -> list[str]:
    return [
        *_wrong_extra(settings.extra),
        *_wrong_accelerators(settings),
        *_wrong_machines(settings),
        *_wrong_users(settings),
    ]


def _wrong_users(settings: SlurmSettings) -> list[str]:
    """Return the error messages about the settings `users` and `directory`."""
    wrong: list[str] = []
    fields = re.findall(r"\{[^{}]{0,100}\}?", settings.directory or "")
    strange = sorted({*fields} - {"{user}", "{uid}"})
    wrong += [f"directory: {field} has no value; use {{user}} or {{uid}}" for field in strange]
    others = sorted({name for name in settings.users.values() if not is_own(name)})
    if not others:
        return wrong
    names = ", ".join(others[:5])
    if os.geteuid():
        wrong.append(
            f"users: only a service of root can run jobs as other users ({names}); run it as root, or run "
            "one service for each user"
        )
    if not settings.shared:
        wrong.append(
            f"users: jobs of other users ({names}) need environments that they may read but not write, "
            "at the same path on nodes: on a shared file system (shared = true)"
        )
    if settings.directory and "{" not in settings.directory:
        wrong.append(
            f"directory: {settings.directory} is not safe for several users ({names}), who may affect each "
            "other; add {user} or {uid} to it"
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
        *(f"{at}extra: the engine sets --{name} itself" for name in options if name in _RESERVED_OPTIONS),
        *(f"{at}extra: use the setting {name} instead of --{name}" for name in options if name in own),
    ]


def _wrong_accelerators(settings: SlurmSettings) -> list[str]:
    wrong = [f"accelerators: {line}" for line in unknown_accelerators(settings.accelerators)]
    types = list(settings.accelerators.values())
    for name in sorted({name for name in types if types.count(name) > 1}):
        wrong.append(f"accelerators: {name!r} is assigned to several accelerator types")
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
                f"{at}gres: {machine.gres!r} needs exactly one accelerator type; accelerators must contain "
                "it, alone"
            )
            continue
        name, _, kind = machine.gres.partition(":")
        public = kinds.setdefault((name, kind), machine.accelerators[0])
        if public != machine.accelerators[0]:
            wrong.append(f"{at}gres: {machine.gres!r} is already assigned to {public}")
    return wrong
