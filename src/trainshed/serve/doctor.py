"""`trainshed doctor`: what this machine lets a service do, why not more, and what to change. Needs no
service, starts none."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trainshed.cli.output_format import output_format, print_data
from trainshed.cli.text.printable import plain
from trainshed.serve import clock
from trainshed.serve.settings import Settings, SettingsError, engine_settings, load

if TYPE_CHECKING:
    from trainshed.engines.local.engine import LocalEngine

_FEW_BYTES = 10 * 2**30
_IN_TMP = (
    "Choose another one by --data: systems empty /tmp when they start, and delete what lies there "
    "for days."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that the doctor looked at."""

    about: str
    #: `good`, `less` (it works, not as well as it could) or `bad`.
    verdict: str
    told: str
    #: What to do; "" = nothing.
    advice: str = ""


_MARKS = {"good": ("ok", "green"), "less": ("--", "yellow"), "bad": ("!!", "red")}


@click.command(
    name="doctor", short_help="Show what this machine lets a service do, and why not more."
)
@click.option(
    "--data", type=click.Path(path_type=Path), help="Data directory. Default: ~/.trainshed."
)
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), help="TOML file of settings."
)
@output_format("text", "Output as text, or as JSON or YAML for programs.")
def command(data: Path | None, config: Path | None, form: str) -> None:
    """Look at isolation, limits, addresses, container tools, GPUs, interpreters and disks, and with the
    engine slurm at its cluster. Exits with 1 if something is so that no service can work."""
    try:
        settings = load(config, {"data": data})
    except SettingsError as failure:
        raise click.ClickException(str(failure)) from None
    findings = list(examine(settings))
    if form == "json":
        print_data([asdict(finding) for finding in findings])
    else:
        _print(findings)
    if any(finding.verdict == "bad" for finding in findings):
        raise SystemExit(1)


def examine(settings: Settings) -> Iterator[Finding]:
    """Every finding, the most important first. Blocks for seconds: each thing is tried."""
    yield from _disks(settings)
    yield from _database(settings)
    if settings.engine == "slurm":
        from trainshed.serve.slurm_doctor import examine_slurm

        yield from examine_slurm(engine_settings(settings))
        # No job runs here; packages are built here, curves shown, and what failed is looked at.
        yield from map(_of_builds, _isolation_alone(asyncio.run(_engine(settings))))
    else:
        yield from asyncio.run(_engine(settings))
    yield _images(settings)
    yield _interpreters(settings)


def _isolation_alone(findings: list[Finding]) -> Iterator[Finding]:
    return (finding for finding in findings if finding.about == "isolation")


def _of_builds(finding: Finding) -> Finding:
    told = f"of builds and of shells in what failed, on this machine: {finding.told}"
    return replace(finding, about="isolation here", told=told)


def _disks(settings: Settings) -> Iterator[Finding]:
    for about, path in (("data directory", settings.data), ("cache", settings.cache)):
        place = _nearest(path)
        if not (place.is_dir() and os.access(place, os.W_OK)):
            option = "--data" if path is settings.data else "$TRAINSHED_CACHE"
            yield Finding(
                about, "bad", f"{path} cannot be written.", f"Choose another one by {option}."
            )
            continue
        free = shutil.disk_usage(place).free
        text = f"{path}, {free / 2**30:.0f} GiB free."
        advice = ""
        if path is settings.cache:
            text, advice = _taken(path, text)
        if free < _FEW_BYTES:
            few = "on a full disk no job is stored, none ends, and programs fail"
            if path is settings.cache:
                few = "runtimes take 0.2 to 3 GiB each"
            yield Finding(about, "less", text, f"Make room: {few}. {advice}".strip())
        elif path is settings.data and path.is_relative_to("/tmp"):
            yield Finding(about, "less", text, _IN_TMP)
        else:
            yield Finding(about, "good", text, advice)


def _database(settings: Settings) -> Iterator[Finding]:
    """All of it is looked through, some seconds for each GB; nothing if there is none yet."""
    from trainshed.store.port import StoreTooNew, StoreUnreadable
    from trainshed.store.records import ADVICE
    from trainshed.store.sqlite.copying import check_database, set_aside_in
    from trainshed.store.sqlite.database import DATABASE_FILE

    database = settings.data / DATABASE_FILE
    if not os.access(database, os.R_OK | os.W_OK):
        return
    try:
        check_database(database)
        bad = set_aside_in(database)
    except StoreTooNew as failure:
        yield Finding("database", "bad", f"{failure}.", "Run that version.")
        return
    except StoreUnreadable as failure:
        yield Finding("database", "bad", f"{failure}.")
        return
    if not bad:
        yield Finding("database", "good", "every page of it is sound, no record is set aside.")
        return
    records = "record" if len(bad) == 1 else "records"
    text = f"{len(bad)} {records} set aside: {'; '.join(map(str, bad))}."
    yield Finding("database", "less", text, ADVICE)


def _taken(cache: Path, free: str) -> tuple[str, str]:
    """What the cache takes, and how to get it back."""
    from trainshed.runtimes.trees import size_of

    taken, downloads = size_of(cache) / 2**30, size_of(cache / "uv", alone=True) / 2**30
    text = f"{free[:-1]}, {taken:.1f} GiB taken, {downloads:.1f} of them by downloads."
    if taken < 1:
        return text, ""
    return text, (
        "`trainshed runtimes list` says what takes how much, `trainshed runtimes gc` removes what was not "
        "used for a month, with --downloads only what builds have downloaded."
    )


def _nearest(path: Path) -> Path:
    """The path, or the nearest above it that is there."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


async def _engine(settings: Settings) -> list[Finding]:
    """What the local engine finds out when it starts, on the file system that slots would lie on."""
    from trainshed.engines.local.engine import LocalEngine
    from trainshed.engines.local.options import Options
    from trainshed.engines.port import LevelUnavailable

    place = _nearest(settings.data)
    beside = place if place.is_dir() and os.access(place, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=".trainshed-doctor-", dir=beside) as name:
        engine = LocalEngine(
            Path(name), Options(level=settings.isolation, processes=settings.max_processes)
        )
        try:
            await engine.start()
            return [finding async for finding in _promises(engine)]
        except LevelUnavailable as failure:
            what = "Demand what works, or nothing, by the setting isolation."
            return [Finding("isolation", "bad", f"{failure}.", what)]
        finally:
            await engine.close()


async def _promises(engine: "LocalEngine") -> AsyncIterator[Finding]:
    can = engine.capabilities()
    text = f"{can.isolation}: {_LEVELS[can.isolation]}"
    reasons: dict[str, list[str]] = {}
    for level, why in can.not_stronger:
        reasons.setdefault(why, []).append(level)
    better = [f"Not {' or '.join(levels)}: {why}." for why, levels in reasons.items()]
    weak = can.isolation in ("root", "session")
    yield Finding("isolation", "less" if weak else "good", text, " ".join(better))
    if can.memory_limit == "kernel":
        yield Finding("memory limit", "good", "held by the kernel (control groups).")
    else:
        advice = "Delegate the memory controller to this user, or run as root."
        yield Finding(
            "memory limit", "less", "held by looking several times a second and killing.", advice
        )
    if can.process_limit:
        yield Finding("process limit", "good", "held by the kernel.")
    else:
        yield Finding("process limit", "less", "none: a fork bomb is the machine's problem.")
    if can.addresses == "loopback":
        text = "each replica has its own, with a name, and port 2222 to itself."
        yield Finding("addresses", "good", text)
    else:
        text = "literal ones in CLUSTER_SPEC: names would need namespaces."
        yield Finding("addresses", "less", text)
    node = (await engine.capacity())[0]
    gpus = ", ".join(f"{count} × {kind or 'GPU'}" for kind, count in node.accelerators)
    text = f"{node.vcpus:g} processors, {node.memory_bytes / 2**30:.1f} GiB, {gpus or 'no GPUs'}."
    yield Finding("machine", "good", text)


_LEVELS = {
    "own-user": "each replica runs as users of its own, in namespaces that it cannot undo.",
    "root": "programs run as root; namespaces keep careless ones apart, not malicious ones.",
    "user": "programs run as this user, in namespaces that they cannot undo.",
    "session": "programs run as this user and see what this user sees.",
}


def _images(settings: Settings) -> Finding:
    from trainshed.runtimes.images.tools import Tools

    tools = Tools(settings.container_tool, os.environ, clock.now)
    try:
        tool = tools.search()
    finally:
        tools.close()
    if tool is not None:
        return Finding("container images", "good", f"fetched by {tool.name}.")
    return Finding("container images", "less", "custom containers are refused.", tools.missing())


def _interpreters(settings: Settings) -> Finding:
    from trainshed.runtimes.interpreters import Interpreters

    pythons = Interpreters(settings.cache.absolute() / "interpreters.json").found()
    versions = ", ".join(f"{major}.{minor}" for major, minor in sorted(pythons))
    advice = (
        "" if len(pythons) > 1 else "Others, found by pyenv or uv, let older runtimes be built."
    )
    return Finding("interpreters", "good", f"Python {versions}.", advice)


def _print(findings: list[Finding]) -> None:
    wide = max(len(finding.about) for finding in findings)
    for finding in findings:
        mark, colour = _MARKS[finding.verdict]
        click.echo(
            f"{click.style(mark, fg=colour)}  {finding.about:<{wide}}  {plain(finding.told)}"
        )
        if finding.advice:
            click.echo(f"    {'':<{wide}}  {plain(finding.advice)}")
