"""Which engines there are, by name: ours, and those that other packages offer as entry points of the group
`trainshed.engines`.

An entry point names an `EngineFactory`:

    [project.entry-points."trainshed.engines"]
    mine = "mypackage.engine:new_engine"
"""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from trainshed.core.units import Bytes
from trainshed.engines.port import Engine, SecretSource, ServiceAccess

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

GROUP = "trainshed.engines"
_OURS = {
    "kubernetes": "trainshed.engines.kubernetes.build:new_engine",
    "local": "trainshed.engines.local.build:new_engine",
    "slurm": "trainshed.engines.slurm.build:new_engine",
}


class ProgramRules(Struct, frozen=True):
    """What holds for all programs, whatever the engine (docs/settings.md)."""

    #: The sandbox level that is demanded; "" = the strongest that works.
    isolation: str = ""
    #: How many processes a replica may have; 0 = any number.
    max_processes: int = 0
    #: Seconds between two looks at what a replica uses; 0 = nobody looks.
    usage_every: float = 0.0
    #: A replica whose files take more than its disk is ended.
    enforce_disk: bool = False
    #: What programs may read even inside of directories that are hidden from them.
    visible: tuple[Path, ...] = ()
    #: For how long what failed replicas left is kept, in ns; 0 = nothing is.
    autopsy_ttl: int = 0
    #: Bytes of all that is kept of them.
    autopsy_limit: Bytes = 10 << 30


class EngineContext(Struct, frozen=True):
    """What a service offers the engine that it builds. All paths are absolute."""

    #: The service's data directory. An engine keeps what is its own in a directory of its name below it.
    data: Path
    #: The engine's own table, `[engines.NAME]` of the configuration. Checked by the engine, except the local
    #: one's.
    settings: Mapping[str, Any]
    #: What launch plans refer to.
    secrets: SecretSource
    #: Nanoseconds since the epoch.
    now: Callable[[], int]
    #: Directories that no program may see.
    hidden: tuple[Path, ...]
    #: Ports that the service listens on, which no program may take while it is away.
    kept_ports: tuple[int, ...]
    access: ServiceAccess
    #: Process that starts processes, begun before the service had threads; the engine owns it. Of use to the
    #: local one.
    zygote: object
    #: Of the local one's slots, begun early; None = it was not.
    survey: object = None
    rules: ProgramRules = ProgramRules()
    #: Where the service keeps environments and images that programs run in.
    cache: Path = Path()
    #: Prefixes of the Pythons that those environments are built on. Blocks when it is first asked.
    interpreters: Callable[[], Collection[Path]] = tuple


EngineFactory = Callable[[EngineContext], Engine]
"""Builds an engine that is not started. Raises ValueError: what is wrong with its settings."""


def names() -> tuple[str, ...]:
    """All engines that a configuration may choose."""
    return tuple(sorted({*_OURS, *(point.name for point in _of_others())}))


def factory(name: str) -> EngineFactory:
    """Raises LookupError: there is no such engine; ImportError: its package cannot be loaded."""
    if name in _OURS:
        return cast("EngineFactory", resolve_name(_OURS[name]))
    for point in _of_others():
        if point.name == name:
            return cast("EngineFactory", point.load())
    raise LookupError(f"there is no engine {name!r}; there are {', '.join(names())}")


def _of_others() -> "EntryPoints":
    # Who has one of ours needs nothing of what this loads.
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)
