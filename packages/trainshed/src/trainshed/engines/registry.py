"""The registry finds engines by name: the local one, and those of other packages, by entry points. Here is
also what `trainshed doctor` finds: each fault with its cause and its remedy.

Of the group `trainshed.engines` they name an `EngineFactory`, and of `trainshed.doctors` a `Doctor`:

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
    """What a service passes to the engine that it builds. All paths are absolute."""

    #: The service's data directory. An engine keeps its own files in a directory of its name below it.
    data: Path
    #: The engine's table `[engines.NAME]` of the configuration. The engine checks it, except the local one.
    settings: Mapping[str, Any]
    #: Resolves the secrets that launch plans refer to.
    secrets: SecretSource
    #: The clock, in nanoseconds since the epoch.
    now: Callable[[], int]
    #: Directories that no program may see.
    hidden: tuple[Path, ...]
    #: Ports that the service listens on, which no program may take while it is away.
    kept_ports: tuple[int, ...]
    access: ServiceAccess
    rules: ProgramRules = ProgramRules()
    #: Where the service keeps environments and images that programs run in.
    cache: Path = Path()
    #: Returns the prefixes of the Pythons that those environments are built on. Its first call blocks.
    interpreters: Callable[[], Collection[Path]] = tuple


EngineFactory = Callable[[EngineContext], Engine]
"""Builds an engine that is not started. Raises ValueError: what is wrong with its settings."""


class Verdict(enum.StrEnum):
    """How good a finding is."""

    #: Nothing has to be done.
    GOOD = "good"
    #: It works, but not as well as it could.
    LESS = "less"
    #: No service can work like this.
    BAD = "bad"


class Finding(Struct, frozen=True):
    """The result of one check."""

    about: str
    verdict: Verdict
    #: What was found, as a text for people.
    text: str
    #: Why it is so; "" only in good findings.
    cause: str = ""
    #: What to do: a command, a setting, a file to change. In good findings: what could be gained beyond, or
    #: "".
    remedy: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a fault without a cause or a remedy."""
        if self.verdict is not Verdict.GOOD and not (self.text and self.cause and self.remedy):
            raise ValueError(f"{self.about}: a fault without its cause and its remedy")


def findings(module: str) -> Callable[..., Finding]:
    """Return what makes the findings of a doctor, by the table beside its module (`__file__`): called with
    the name of a row, and the values that stand in the row's texts as `{name}`."""
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
"""Tries out what an engine needs. Is called with the engine's table and the cache's directory. May block for
seconds."""


def names() -> tuple[str, ...]:
    """Return the names of all engines that a configuration may choose."""
    return tuple(sorted({"local", *_OF_CLUSTERS, *(point.name for point in _points(ENGINES))}))


def factory(name: str) -> EngineFactory:
    """Return the factory of an engine. Raises LookupError (there is no such engine, or it is not installed),
    ImportError (its package cannot be loaded)."""
    if name == "local":
        return cast("EngineFactory", resolve_name(_LOCAL))
    for point in _points(ENGINES):
        if point.name == name:
            return cast("EngineFactory", point.load())
    if name in _OF_CLUSTERS:
        raise LookupError(
            f"it is in a package of its own, which is not installed here: pip install 'trainshed[{name}]'"
        )
    raise LookupError(f"there is no engine {name!r}; there are {', '.join(names())}")


def doctor(name: str) -> Doctor | None:
    """Return what looks at all that an engine needs; None = its package has nothing of the kind. Raises
    ImportError."""
    for point in _points(DOCTORS):
        if point.name == name:
            return cast("Doctor", point.load())
    return None


def _points(group: str) -> "EntryPoints":
    # Imported late: a service with the local engine never needs it.
    from importlib.metadata import entry_points

    return entry_points(group=group)
