"""`trainshed doctor`: shows what this machine lets a service do, why not more, and what to change. Needs no
service, and starts none."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec

from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.colours import plain
from trainshed.core.capacity import Node
from trainshed.engines.port import Capabilities
from trainshed.engines.registry import Finding, Verdict, bad, doctor, good, less
from trainshed.serve import clock
from trainshed.serve.settings import Settings, engine_settings, load

_TRIAL = ".trainshed-doctor-"
_FEW_BYTES = 10 * 2**30
_TMP = "Systems empty /tmp when they start, and delete what lies there for days."
_MARKS = {Verdict.GOOD: ("ok", "green"), Verdict.LESS: ("--", "yellow"), Verdict.BAD: ("!!", "red")}


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
    """Look at isolation, limits, addresses, container tools, GPUs, interpreters and disks, and with an
    engine for clusters at its cluster. Each fault is told with its cause and what mends it. Exits with 1 if
    something is so that no service can work."""
    settings = load(config, {"data": data})
    findings = list(examine(settings))
    if form == "json":
        print_data(msgspec.to_builtins(findings))
    else:
        _print(findings)
    if any(finding.verdict is Verdict.BAD for finding in findings):
        raise SystemExit(1)


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield every finding, the most important first. Blocks for seconds, because each thing is tried out."""
    yield from _disks(settings)
    yield from _database(settings)
    if settings.engine != "local" and (examine_cluster := doctor(settings.engine)):
        yield from examine_cluster(engine_settings(settings), settings.cache)
        # No job runs here, but packages are built, curves shown, and failed replicas looked at here.
        findings = asyncio.run(_engine(settings))
        yield from (_of_builds(finding) for finding in findings if finding.about == "isolation")
    else:
        yield from asyncio.run(_engine(settings))
    if settings.engine != "kubernetes":  # Kubernetes refuses them.
        yield _images(settings)
    yield _interpreters()


def _of_builds(finding: Finding) -> Finding:
    text = f"of builds and of shells in what failed, on this machine: {finding.text}"
    return msgspec.structs.replace(finding, about="isolation here", text=text)


def _disks(settings: Settings) -> Iterator[Finding]:
    for about, path in (("data directory", settings.data), ("cache", settings.cache)):
        place = _nearest(path)
        if refusal := _refusal(place):
            option = "--data" if path is settings.data else "$TRAINSHED_CACHE"
            statement = f"{path} cannot be written."
            cause = f"{place} is {refusal}."
            yield bad(about, statement, cause=cause, remedy=f"Choose another one by {option}.")
            continue
        free = shutil.disk_usage(place).free
        text = f"{path}, {free / 2**30:.0f} GiB free."
        advice = ""
        if path is settings.cache:
            text, advice = _taken(path, text)
        if path is settings.data and path.is_relative_to("/tmp"):
            yield less(about, text, cause=_TMP, remedy="Choose another one by --data.")
        elif free < _FEW_BYTES:
            few = "On a full disk no job is stored, none ends, and programs fail."
            if path is settings.cache:
                few = "Runtimes take 0.2 to 3 GiB each."
            else:
                advice = "The setting retention_jobs deletes old jobs with their logs."
            yield less(about, text, cause=few, remedy=f"Make room. {advice}".strip())
        else:
            yield good(about, text, remedy=advice)


def _database(settings: Settings) -> Iterator[Finding]:
    """Yield findings about the whole database, which is read at some seconds per GB; none if there is no
    database yet."""
    from trainshed.store.port import StoreOfOtherVersion, StoreUnreadable
    from trainshed.store.records import ADVICE
    from trainshed.store.sqlite.connections import DATABASE_FILE
    from trainshed.store.sqlite.copying import check_database, set_aside_in
    from trainshed.store.sqlite.presence import require_present

    database = settings.data / DATABASE_FILE
    try:
        require_present(database, had_one=False)
    except StoreUnreadable as failure:
        statement, _, remedy = f"{failure}.".partition(". ")
        cause = "It was removed, or the directory was copied in part."
        yield bad("database", f"{statement}.", cause=cause, remedy=remedy)
        return
    if not os.access(database, os.R_OK | os.W_OK):
        return
    try:
        check_database(database)
        aside = set_aside_in(database)
    except StoreOfOtherVersion as failure:
        statement, _, remedy = str(failure).partition(". ")
        cause = "Another version of the service has written it."
        yield bad("database", f"{statement}.", cause=cause, remedy=remedy)
        return
    except StoreUnreadable as failure:
        yield bad(
            "database",
            f"{failure}.",
            cause="A damaged disk, or another program, has changed it.",
            remedy="Restore a backup into an empty data directory (`trainshed restore FILE --data DIR`), and "
            "look after the disk (`dmesg`, `smartctl`).",
        )
        return
    if not aside:
        yield good("database", "every page of it is sound, no record is set aside.")
        return
    records = "record" if len(aside) == 1 else "records"
    text = f"{len(aside)} {records} set aside: {'; '.join(map(str, aside))}."
    cause, _, remedy = ADVICE.partition(". ")
    yield less("database", text, cause=f"{cause}.", remedy=remedy)


def _taken(cache: Path, free: str) -> tuple[str, str]:
    """Return a text with the size of the cache, and how to reduce it."""
    from trainshed.runtimes.trees import size_of

    taken, downloads = size_of(cache) / 2**30, size_of(cache / "uv", alone=True) / 2**30
    text = f"{free[:-1]}, {taken:.1f} GiB taken, {downloads:.1f} of them by downloads."
    if taken < 1:
        return text, ""
    return text, (
        "`trainshed runtimes gc` removes what was not used for a month, with --downloads only what builds "
        "have downloaded; with --dry-run it says what takes how much."
    )


def _refusal(place: Path) -> str:
    """Return why nothing can be written into a directory; "" if it can be."""
    if not place.is_dir():
        return "no directory"
    if not os.access(place, os.W_OK):
        return "not writable for this user"
    try:
        with tempfile.TemporaryDirectory(prefix=_TRIAL, dir=place):
            return ""
    except OSError as error:
        return f"on a disk that takes nothing ({error.strerror})"


def _nearest(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists."""
    return next(parent for parent in (path, *path.parents) if parent.exists())


async def _engine(settings: Settings) -> list[Finding]:
    """Return what the local engine finds out when it starts, tried on the file system of its slots."""
    from trainshed.engines.local.engine import LocalEngine
    from trainshed.engines.local.options import Options
    from trainshed.engines.port import LevelUnavailable

    place = _nearest(settings.data)
    beside = None if _refusal(place) else place
    with tempfile.TemporaryDirectory(prefix=_TRIAL, dir=beside) as name:
        engine = LocalEngine(
            Path(name),
            Options(level=settings.isolation or None, processes=settings.max_processes or None),
        )
        try:
            await engine.start()
            node = (await engine.capacity())[0]
            return list(promises(engine.capabilities(), node))
        except LevelUnavailable as failure:
            cause = f"The setting isolation demands {settings.isolation}."
            what = "Demand what works, or nothing, by the setting isolation."
            return [bad("isolation", f"{failure}.", cause=cause, remedy=what)]
        finally:
            await engine.close()


def promises(can: Capabilities, node: Node) -> Iterator[Finding]:
    """Yield what an engine can promise on a machine, for which `node` stands. Pure."""
    text = f"{can.isolation}: {_LEVELS[can.isolation]}"
    reasons: dict[str, list[str]] = {}
    for level, why in can.not_stronger:
        reasons.setdefault(why, []).append(level)
    stronger = " ".join(f"Not {' or '.join(levels)}: {why}." for why, levels in reasons.items())
    if can.isolation in _STRONGER:
        why = stronger or "It is what the setting isolation demands."
        yield less("isolation", text, cause=why, remedy=_STRONGER[can.isolation])
    else:
        yield good("isolation", text, cause=stronger)
    looked = "by looking several times a second and killing."
    for what, is_held, otherwise, controller in (
        ("memory", can.memory_limit == "kernel", f"held {looked}", "memory"),
        ("process", can.process_limit, "none: a fork bomb is the machine's problem.", "pids"),
    ):
        if is_held:
            yield good(f"{what} limit", "held by the kernel (control groups).")
            continue
        yield less(
            f"{what} limit",
            otherwise,
            cause=f"There is no control group with the {controller} controller that this user may write.",
            remedy=f"Delegate the controller to this user ({_DELEGATE}), or run as root.",
        )
    if can.process_namespace:
        yield good("addresses", "each replica has its own, with a name, and port 2222 to itself.")
    else:
        yield less(
            "addresses",
            "literal ones in CLUSTER_SPEC.",
            cause=f"Names of replicas need namespaces, and at the isolation {can.isolation} there are none.",
            remedy=_STRONGER["session"],
        )
    gpus = ", ".join(f"{count} × {kind or 'GPU'}" for kind, count in node.accelerators)
    text = f"{node.vcpus:g} processors, {node.memory_bytes / 2**30:.1f} GiB, {gpus or 'no GPUs'}."
    yield good("machine", text)


_DELEGATE = "in the unit: `Delegate=yes`, as in docs/server.md"
_LEVELS = {
    "own-user": "each replica runs as users of its own, in namespaces that it cannot undo.",
    "root": "programs run as root; namespaces keep careless ones apart, not malicious ones.",
    "user": "programs run as this user, in namespaces that they cannot undo.",
    "session": "programs run as this user and see what this user sees.",
}


_STRONGER = {
    "root": "Run the service as root of the machine itself, on Linux 5.12 or newer, or as an ordinary user "
    "who may make user namespaces (`unshare -Ur true` works).",
    "session": "Let this user make user namespaces (`unshare -Ur true` must work): as root `sysctl -w "
    "user.max_user_namespaces=10000`, and where they are there kernel.unprivileged_userns_clone=1 and "
    "kernel.apparmor_restrict_unprivileged_userns=0; what a container needs: docs/server.md. Or run the "
    "service as root. Namespaces are Linux's alone.",
}
"""How to get a stronger level than these two, which are weak."""


def _images(settings: Settings) -> Finding:
    from trainshed.runtimes.images.tools import Tools

    tools = Tools(settings.container_tool, os.environ, clock.now)
    try:
        tool = tools.search()
    finally:
        tools.close()
    if tool is not None:
        return good("container images", f"fetched by {tool.name}.")
    refused = "custom containers are refused."
    if settings.container_tool == "none":
        cause, remedy = "The setting container_tool is none.", "Set it to auto, podman or docker."
    else:
        # Its last sentence is the remedy.
        cause, _, remedy = tools.missing().rpartition(". ")
        cause += "."
    return less("container images", refused, cause=cause, remedy=remedy)


def _interpreters() -> Finding:
    from trainshed.runtimes.interpreters import Interpreters

    pythons = Interpreters().found()
    versions = ", ".join(f"{major}.{minor}" for major, minor in sorted(pythons))
    advice = (
        "" if len(pythons) > 1 else "Others, found by pyenv or uv, let older runtimes be built."
    )
    return good("interpreters", f"Python {versions}.", remedy=advice)


def _print(findings: list[Finding]) -> None:
    wide = max(len(finding.about) for finding in findings)
    for finding in findings:
        mark, colour = _MARKS[finding.verdict]
        click.echo(
            f"{click.style(mark, fg=colour)}  {finding.about:<{wide}}  {plain(finding.text)}"
        )
        for text in filter(None, (finding.cause, finding.remedy)):
            click.echo(f"    {'':<{wide}}  {plain(text)}")
