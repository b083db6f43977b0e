"""What an operator may choose about the Slurm engine: the table `[engines.slurm]`."""

import difflib
import os
import re
import shutil
import socket
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from trainshed.core.catalog.accelerators import accelerator_types
from trainshed.core.names import Api

_Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.,@+-]{0,200}$")]
_Directory = Annotated[str, msgspec.Meta(pattern=r"^(/[^\x00-\x1f]{0,500})?$")]
_Argument = Annotated[str, msgspec.Meta(pattern=r"^--[a-z][a-z-]+(=[^\x00-\x1f]{1,500})?$")]

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


class SlurmSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Table `[engines.slurm]`."""

    #: Name or address at which nodes reach the service; "" = this machine's name.
    address: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{0,253}$")] = ""
    #: Where agents are listened to.
    host: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{1,253}$")] = "0.0.0.0"
    #: 0 = any that is free.
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    #: Several may be given, with commas between; "" = Slurm's default one for jobs, and the nodes of all.
    partition: _Word = ""
    account: _Word = ""
    qos: _Word = ""
    #: Features that nodes must have, as for salloc.
    constraint: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.,@+&|()\[\]*:-]{0,500}$")] = ""
    #: Further arguments of salloc, each of the form --NAME or --NAME=VALUE.
    extra: Annotated[list[_Argument], msgspec.Meta(max_length=50)] = []
    #: Slurm's type of gpu for each public accelerator type; "" = one without a type.
    accelerators: dict[str, _Word] = {}
    #: On nodes, of their own disk: where agents and their programs write; "" = /tmp/trainshed-UID.
    directory: _Directory = ""
    #: Interpreter on nodes that has this package; "" = the service's own path.
    python: _Directory = ""
    #: The service's data directory is seen on nodes, at the same path.
    shared: bool = False
    #: GiB of what is sent to a node that shares no files; beyond it goes what was not used for longest.
    #: 0 = as much as its disk takes.
    cache_limit: Annotated[float, msgspec.Meta(ge=0)] = 0
    #: Seconds of silence after which an agent ends its programs, and its node is lost unless Slurm says so
    #: before. As long as the service may be away.
    lease: Annotated[float, msgspec.Meta(ge=5, le=86400)] = 300.0
    #: Seconds between two looks at the cluster.
    look_every: Annotated[float, msgspec.Meta(ge=5, le=600)] = 8.0
    #: Each node's disk, memory, clock and GPUs are looked at before something is started there.
    preflight: bool = False
    #: For how long a node is left alone that was found unfit.
    quarantine_minutes: Annotated[float, msgspec.Meta(ge=1, le=10080)] = 60.0
    #: Directory of Slurm's commands; "" = on the PATH.
    commands: _Directory = ""

    @property
    def service_address(self) -> str:
        return self.address or socket.gethostname()

    @property
    def node_directory(self) -> str:
        return self.directory or f"/tmp/trainshed-{os.geteuid()}"

    @property
    def in_reservation(self) -> bool:
        return any(argument.startswith("--reservation=") for argument in self.extra)

    def command(self, name: str) -> str:
        """Path of one of Slurm's commands. Raises FileNotFoundError: there is none."""
        found = shutil.which(name, path=self.commands or None)
        if not found:
            where = self.commands or f"the PATH ({os.environ.get('PATH', os.defpath)})"
            raise FileNotFoundError(
                f"there is no command {name} in {where}: install Slurm's client commands (Debian: "
                "slurm-client), or say where they are in [engines.slurm] commands"
            )
        return found


def parse(table: Mapping[str, Any]) -> SlurmSettings:
    """Raises ValueError: everything that is wrong with the table, one line each."""
    fields = {field.name: field for field in msgspec.structs.fields(SlurmSettings)}
    wrong: list[str] = []
    for key, value in table.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(fields)}"
            wrong.append(f"{key}: there is no such setting; {hint}")
            continue
        try:
            msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as e:
            wrong.append(f"{key}: {e}")
    if not wrong:
        settings = msgspec.convert(dict(table), SlurmSettings)
        wrong = [*_wrong_extra(settings), *_wrong_accelerators(settings)]
        if not wrong:
            return settings
    raise ValueError("\n".join(f"[engines.slurm] {line}" for line in wrong))


def _wrong_extra(settings: SlurmSettings) -> list[str]:
    named = [
        re.split("=", argument.removeprefix("--"), maxsplit=1)[0] for argument in settings.extra
    ]
    own = {"partition", "account", "qos", "constraint"}
    return [
        *(f"extra: --{name} is the engine's own to give" for name in named if name in _OURS),
        *(f"extra: --{name} has a setting of its own, {name}" for name in named if name in own),
    ]


def _wrong_accelerators(settings: SlurmSettings) -> list[str]:
    known = sorted({name for api in Api for name in accelerator_types(api)})
    wrong: list[str] = []
    for public in settings.accelerators:
        if public not in known:
            near = difflib.get_close_matches(public.upper().replace("-", "_"), known, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            wrong.append(f"accelerators: there is no accelerator type {public!r}; {hint}")
    types = list(settings.accelerators.values())
    for name in sorted({name for name in types if types.count(name) > 1}):
        wrong.append(f"accelerators: {name!r} stands for more than one accelerator type")
    return wrong
