"""`trainshed doctor`: checks which features of a service work on this machine, and shows causes and fixes. It
starts no service."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import click
import msgspec

from trainshed.cli.connection import local
from trainshed.cli.output import output_format, print_data
from trainshed.cli.text.colours import plain
from trainshed.core.capacity import Node
from trainshed.engines import registry
from trainshed.engines.findings import Finding, Verdict, finding_builder
from trainshed.engines.port import Capabilities
from trainshed.serve import clock, delegation
from trainshed.serve.settings import Settings, engine_settings, load

_TRIAL = ".trainshed-doctor-"
_FEW_BYTES = 10 * 2**30
_MARKS = {Verdict.GOOD: ("ok", "green"), Verdict.LESS: ("--", "yellow"), Verdict.BAD: ("!!", "red")}
_finding = finding_builder(__file__)


@click.command(name="doctor", short_help="Check what a service can do on this machine.")
@click.option("--data", type=click.Path(path_type=Path), help="Data directory. Default: ~/.trainshed.")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file with the settings of the service. Default: no file.",
)
@output_format("text", "Output as text, or as JSON or YAML for programs.")
def command(data: Path | None, config: Path | None, form: str) -> None:
    """Check isolation, limits, addresses, container tools, GPUs, interpreters and disks, and the cluster of
    an engine for clusters. Each problem is shown with its cause and fix. Exits with 1 if a problem prevents
    any service from working."""
    findings = list(examine(load(config, {"data": data})))
    if form == "json":
        print_data(msgspec.to_builtins(findings))
    else:
        wide = max(len(finding.about) for finding in findings)
        for finding in findings:
            mark, colour = _MARKS[finding.verdict]
            click.echo(f"{click.style(mark, fg=colour)}  {finding.about:<{wide}}  {plain(finding.text)}")
            for text in filter(None, (finding.cause, finding.remedy)):
                click.echo(f"    {'':<{wide}}  {plain(text)}")
    if any(finding.verdict is Verdict.BAD for finding in findings):
        raise SystemExit(1)


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield every finding, the most important first. Blocks for several seconds, because it tries each
    feature."""
    from trainshed.runtimes.interpreters import Interpreters

    yield from _disks(settings)
    yield from _database(settings)
    if settings.engine != "local" and (examine_cluster := registry.doctor(settings.engine)):
        yield from examine_cluster(engine_settings(settings), settings.cache)
        # Also check the isolation on this machine. With a cluster, no job runs here, but builds, TensorBoard,
        # and shells in the files of failed replicas do.
        for finding in asyncio.run(_engine(settings)):
            if finding.about == "isolation":
                text = f"for builds and autopsy shells on this machine: {finding.text}"
                yield msgspec.structs.replace(finding, about="isolation here", text=text)
    else:
        yield from asyncio.run(_engine(settings))
    if settings.engine != "kubernetes":  # The Kubernetes engine rejects container images.
        yield _images(settings)
    pythons = sorted(Interpreters().found())
    yield _finding("interpreters", versions=", ".join(f"{a}.{b}" for a, b in pythons))


def _disks(settings: Settings) -> Iterator[Finding]:
    for about, path, option in (
        ("data directory", settings.data, "--data"),
        ("cache", settings.cache, "$TRAINSHED_CACHE"),
    ):
        place = _nearest(path)
        if refusal := _refusal(place):
            yield _finding("unwritable", about=about, path=path, place=place, refusal=refusal, option=option)
            continue
        free = shutil.disk_usage(place).free
        is_full, shown = free < _FEW_BYTES, {"path": path, "free": free / 2**30}
        if path is settings.cache:
            from trainshed.runtimes.trees import size_of

            shown["taken"] = size_of(path) / 2**30
            shown["downloads"] = size_of(path / "uv", alone=True) / 2**30
            yield _finding("cache_full" if is_full else "cache", **shown)
        elif path.is_relative_to("/tmp"):
            yield _finding("data_in_tmp", **shown)
        else:
            yield _finding("data_full" if is_full else "data", **shown)


def _database(settings: Settings) -> Iterator[Finding]:
    """Read the whole database, and yield the finding. Yield nothing if no database exists. Reading takes some
    seconds per GB."""
    from trainshed.api.additions import import_additions
    from trainshed.store.codec import ADVICE
    from trainshed.store.port import StoreOfOtherVersion, StoreUnreadable
    from trainshed.store.sqlite.connections import DATABASE_FILE
    from trainshed.store.sqlite.copying import check_database, unreadable_in
    from trainshed.store.sqlite.presence import require_present

    database = settings.data / DATABASE_FILE
    row = "database_gone"
    try:
        require_present(database, had_one=False)
        if not os.access(database, os.R_OK | os.W_OK):
            return
        row = "database_damaged"
        check_database(database)
        import_additions()
        unreadable = list(unreadable_in(database))
    except StoreUnreadable as failure:
        if isinstance(failure, StoreOfOtherVersion):
            row = "database_of_other_version"
        what, _, remedy = str(failure).partition(". ")
        yield _finding(row, failure=what, remedy=remedy)
        return
    if unreadable:
        cause, _, remedy = ADVICE.partition(". ")
        yield _finding("records_unreadable", records="; ".join(unreadable), cause=cause, remedy=remedy)
    else:
        yield _finding("database")


def _refusal(place: Path) -> str | None:
    """Return the reason why a directory is not writable, or None if it is writable."""
    if not place.is_dir():
        return "not a directory"
    if not os.access(place, os.W_OK):
        return "not writable by this user"
    try:
        with tempfile.TemporaryDirectory(prefix=_TRIAL, dir=place):
            return None
    except OSError as error:
        return f"on a disk without space or in an error state ({error.strerror})"


def _nearest(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


async def _engine(settings: Settings) -> list[Finding]:
    """Start the local engine on the file system of the replicas' directories, and return the findings."""
    from trainshed.engines.local.engine import LocalEngine
    from trainshed.engines.local.options import Options
    from trainshed.engines.port import LevelUnavailable, ProgramRules

    process = os.getpid()
    try:
        # Check the control groups of a running service, because they are not those of this process.
        process = local(settings.data).pid or process
    except click.ClickException:
        delegation.prepare()
    place = _nearest(settings.data)
    beside = None if _refusal(place) else place
    with tempfile.TemporaryDirectory(prefix=_TRIAL, dir=beside) as name:
        rules = ProgramRules(settings.isolation, settings.max_processes or None)
        engine = LocalEngine(Path(name), Options(rules=rules, membership=f"/proc/{process}/cgroup"))
        try:
            await engine.start()
            node = (await engine.capacity())[0]
            which, unit = delegation.diagnose(process)
            advice = _finding(f"groups_{which}", unit=unit, uid=os.geteuid()).remedy
            return list(capability_findings(engine.capabilities(), node, advice))
        except LevelUnavailable as failure:
            return [_finding("isolation_refused", failure=failure, level=settings.isolation)]
        finally:
            await engine.close()


def capability_findings(can: Capabilities, node: Node, advice: str) -> Iterator[Finding]:
    """Yield a finding for each capability of an engine on the machine that `node` describes. Pure. `can`: the
    capabilities. `advice`: how to let the kernel enforce limits on that machine."""
    reasons: dict[str, list[str]] = {}
    for level, why in can.not_stronger:
        reasons.setdefault(why, []).append(level)
    stronger = " ".join(f"{' or '.join(levels)} is not available: {why}." for why, levels in reasons.items())
    demanded = "The setting isolation requires this level."
    yield _finding(f"isolation_{can.isolation}", why=stronger or demanded)
    for what, is_held in (("memory", can.memory_limit == "kernel"), ("process", bool(can.process_limit))):
        yield _finding("held" if is_held else f"{what}_not_held", what=what, advice=advice)
    row = "addresses" if can.process_namespace else "addresses_without_names"
    yield _finding(row, level=can.isolation)
    gpus = ", ".join(f"{count} × {kind or 'GPU'}" for kind, count in node.accelerators)
    yield _finding("machine", node=node, memory=node.memory_bytes / 2**30, gpus=gpus or "no GPUs")


def _images(settings: Settings) -> Finding:
    from trainshed.runtimes.images.tools import Tools

    if settings.container_tool == "none":
        return _finding("images_off")
    with closing(Tools(settings.container_tool, os.environ, clock.now)) as tools:
        tool = tools.search()
    if tool is not None:
        return _finding("images", tool=tool.name)
    # The last sentence of the message is the remedy.
    cause, _, remedy = tools.missing().rpartition(". ")
    return _finding("images_without_tool", cause=cause, remedy=remedy)
