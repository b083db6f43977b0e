"""Finds engines and their doctors by name: the local engine, and those of other packages by entry points.

The group `trainshed.engines` contains an `EngineFactory` per engine, and `trainshed.doctors` a `Doctor`:

    [project.entry-points."trainshed.engines"]
    mine = "mypackage.engine:new_engine"
    [project.entry-points."trainshed.doctors"]
    mine = "mypackage.doctor:examine"
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from trainshed.engines.findings import Finding
from trainshed.engines.port import Engine, ProgramRules, SecretSource, ServiceAccess

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENGINES, DOCTORS = "trainshed.engines", "trainshed.doctors"
_LOCAL = "trainshed.engines.local.engine:new_engine"
_CLUSTER_ENGINES = ("kubernetes", "slurm")


class EngineContext(Struct, frozen=True):
    """The parameters from the service for its engine. All paths are absolute."""

    #: The service's data directory. An engine stores its own files in a subdirectory with its name.
    data: Path
    #: The engine's table `[engines.NAME]` of the configuration. Each engine checks its table, except for the
    #: local engine, whose table the service checks.
    settings: Mapping[str, Any]
    #: Resolves the secrets that launch plans refer to.
    secrets: SecretSource
    #: The clock, in nanoseconds since the epoch.
    now: Callable[[], int]
    #: Directories that no program may see.
    hidden: tuple[Path, ...]
    #: Ports of the service. Programs may not bind them, even while the service is stopped.
    kept_ports: tuple[int, ...]
    access: ServiceAccess
    rules: ProgramRules = ProgramRules()
    #: Directory of the environments and images that programs use.
    cache: Path = Path()
    #: Returns the directories (prefixes) of the Pythons on which the environments in `cache` are based. The
    #: first call blocks.
    interpreters: Callable[[], Collection[Path]] = tuple


EngineFactory = Callable[[EngineContext], Engine]
"""Builds an engine without starting it. Raises ValueError with the errors in its settings."""


Doctor = Callable[[Mapping[str, Any], Path], Iterable[Finding]]
"""Checks the requirements of an engine. The arguments are the engine's table and the cache directory. May
block for seconds."""


def names() -> tuple[str, ...]:
    """Return the names of all engines that a configuration may choose."""
    return tuple(sorted({"local", *_CLUSTER_ENGINES, *(point.name for point in _points(ENGINES))}))


def factory(name: str) -> EngineFactory:
    """Return the factory of an engine. Raises LookupError if the engine is unknown or not installed,
    ImportError if its package cannot be loaded."""
    if name == "local":
        return cast("EngineFactory", resolve_name(_LOCAL))
    for point in _points(ENGINES):
        if point.name == name:
            return cast("EngineFactory", point.load())
    if name in _CLUSTER_ENGINES:
        raise LookupError(
            f"the engine's package is not installed on this machine. Run: pip install 'trainshed[{name}]'"
        )
    raise LookupError(f"the engine {name!r} does not exist. Choose one of {', '.join(names())}")


def doctor(name: str) -> Doctor | None:
    """Return the doctor of an engine, or None if its package has none. Raises ImportError."""
    for point in _points(DOCTORS):
        if point.name == name:
            return cast("Doctor", point.load())
    return None


def _points(group: str) -> "EntryPoints":
    # Imported late: a service with the local engine never needs it.
    from importlib.metadata import entry_points

    return entry_points(group=group)
