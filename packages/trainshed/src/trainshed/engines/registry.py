"""Finds engines by name: the local one, and those of other packages by entry points. Also defines the
findings of `trainshed doctor`: each fault with its cause and its remedy.

The group `trainshed.engines` contains an `EngineFactory` per engine, and `trainshed.doctors` a `Doctor`:

    [project.entry-points."trainshed.engines"]
    mine = "mypackage.engine:new_engine"
    [project.entry-points."trainshed.doctors"]
    mine = "mypackage.doctor:examine"
"""

import enum
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct, convert

from trainshed.engines.port import Engine, ProgramRules, SecretSource, ServiceAccess

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENGINES, DOCTORS = "trainshed.engines", "trainshed.doctors"
_LOCAL = "trainshed.engines.local.engine:new_engine"
_OF_CLUSTERS = ("kubernetes", "slurm")


class EngineContext(Struct, frozen=True):
    """The parameters from the service for its engine. All paths are absolute."""

    #: The service's data directory. An engine keeps its own files in a subdirectory with its name.
    data: Path
    #: The engine's table `[engines.NAME]` of the configuration. The engine checks it, except the local one.
    settings: Mapping[str, Any]
    #: Resolves the secrets that launch plans refer to.
    secrets: SecretSource
    #: The clock, in nanoseconds since the epoch.
    now: Callable[[], int]
    #: Directories that no program may see.
    hidden: tuple[Path, ...]
    #: Ports of the service, which no program may bind while the service is stopped.
    kept_ports: tuple[int, ...]
    access: ServiceAccess
    rules: ProgramRules = ProgramRules()
    #: Directory of the environments and images for programs.
    cache: Path = Path()
    #: Returns the prefixes of the Pythons of those environments. Its first call blocks.
    interpreters: Callable[[], Collection[Path]] = tuple


EngineFactory = Callable[[EngineContext], Engine]
"""Builds an engine without starting it. Raises ValueError with the faults of its settings."""


class Verdict(enum.StrEnum):
    """The grade of a finding."""

    #: No action is necessary.
    GOOD = "good"
    #: It works, but not as well as it could.
    LESS = "less"
    #: No service can work like this.
    BAD = "bad"


class Finding(Struct, frozen=True):
    """The result of one check."""

    about: str
    verdict: Verdict
    #: The observation, as a text for people.
    text: str
    #: The cause; "" only in good findings.
    cause: str = ""
    #: The fix: a command, a setting, a file to change. In good findings: a possible improvement, or "".
    remedy: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a fault without a cause or a remedy."""
        if self.verdict is not Verdict.GOOD and not (self.text and self.cause and self.remedy):
            raise ValueError(f"{self.about}: a fault without a cause or a remedy")


def findings(module: str) -> Callable[..., Finding]:
    """Return a function that builds a doctor's findings from the TOML table next to its module (`__file__`).
    Its arguments are the name of a row, and the values of the placeholders `{name}` in the row's texts."""
    table = Path(module).with_suffix(".toml").read_text("utf-8")
    rows = convert(tomllib.loads(table), dict[str, Finding])

    def finding(row: str, /, **values: object) -> Finding:
        texts = rows[row]
        return Finding(
            texts.about.format_map(values),
            texts.verdict,
            texts.text.format_map(values),
            texts.cause.format_map(values),
            texts.remedy.format_map(values),
        )

    return finding


Doctor = Callable[[Mapping[str, Any], Path], Iterable[Finding]]
"""Checks the requirements of an engine. Its arguments are the engine's table and the cache directory. May
block for seconds."""


def names() -> tuple[str, ...]:
    """Return the names of all engines that a configuration may choose."""
    return tuple(sorted({"local", *_OF_CLUSTERS, *(point.name for point in _points(ENGINES))}))


def factory(name: str) -> EngineFactory:
    """Return the factory of an engine. Raises LookupError (unknown or not installed), ImportError (its
    package cannot be loaded)."""
    if name == "local":
        return cast("EngineFactory", resolve_name(_LOCAL))
    for point in _points(ENGINES):
        if point.name == name:
            return cast("EngineFactory", point.load())
    if name in _OF_CLUSTERS:
        raise LookupError(
            f"it is a separate package, which is not installed here. Run: pip install 'trainshed[{name}]'"
        )
    raise LookupError(f"the engine {name!r} does not exist. Choose one of {', '.join(names())}")


def doctor(name: str) -> Doctor | None:
    """Return the doctor of an engine; None = its package has none. Raises ImportError."""
    for point in _points(DOCTORS):
        if point.name == name:
            return cast("Doctor", point.load())
    return None


def _points(group: str) -> "EntryPoints":
    # Imported late: a service with the local engine never needs it.
    from importlib.metadata import entry_points

    return entry_points(group=group)
