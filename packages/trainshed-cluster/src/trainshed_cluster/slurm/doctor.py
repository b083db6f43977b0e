"""The checks of `trainshed doctor` for a Slurm cluster: whether it answers, what it has, and whether nodes
can call this machine. Starts nothing there."""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec import Struct

import trainshed
from trainshed.engines.port import NodeState
from trainshed.engines.registry import Finding, bad, good, less
from trainshed_cluster.remote.cluster import ClusterRefused, ClusterUnavailable, Owner
from trainshed_cluster.remote.options import examine_address
from trainshed_cluster.slurm import commands
from trainshed_cluster.slurm.client import SlurmClient
from trainshed_cluster.slurm.queries import SHOW_CONFIG, list_nodes, parse_config
from trainshed_cluster.slurm.records import NodeLine, node_state
from trainshed_cluster.slurm.routes import Routes
from trainshed_cluster.slurm.settings import SlurmSettings, parse
from trainshed_cluster.slurm.users import Users

_TOLD_NODES = 5
_IN_FILE = "The table [engines.slurm] of the configuration says so."
_SETTINGS = "Correct it there; docs/slurm.md lists all settings."
_NO_CLIENT = "Slurm's client commands are not installed here, or lie elsewhere."
_COMMANDS = "Install them (slurm-client), or set [engines.slurm] commands to the directory in which they lie."
_CONTROLLER = (
    "Look whether slurmctld runs, munge runs here with the cluster's key, and `sinfo` works as this "
    "user."
)
_NOT_LET = "The site does not let them, or not in, as far as programs need it."
_LET = (
    "docs/slurm.md says what each user needs: the same on all nodes, allowed in partition and account, "
    "and let to what programs run in."
)


def examine_slurm(table: Mapping[str, Any], cache: Path | None = None) -> Iterator[Finding]:
    """Yield the findings. `table`: `[engines.slurm]` of the configuration. `cache`: the runtimes' directory;
    None = it is not checked. Blocks until Slurm has answered, or failed to."""
    try:
        settings = parse(table)
    except ValueError as failure:
        reason = str(failure).replace("\n", "; ") + "."
        yield bad("Slurm settings", reason, cause=_IN_FILE, remedy=_SETTINGS)
        return
    yield from _examine(settings, cache)


def _examine(settings: SlurmSettings, cache: Path | None) -> Iterator[Finding]:
    """Check one cluster, and the address that its nodes call."""
    try:
        settings.require_commands()
    except FileNotFoundError as missing:
        yield bad("Slurm commands", f"{missing}.", cause=_NO_CLIENT, remedy=_COMMANDS)
    else:
        where = settings.commands or "on the PATH"
        yield good("Slurm commands", f"all there ({where}).")
        yield from asyncio.run(_cluster(settings))
        if settings.users:
            yield from asyncio.run(_users(settings, cache))
    yield examine_address("slurm", "nodes", settings.address)


async def _cluster(settings: SlurmSettings) -> list[Finding]:
    client, routes = SlurmClient(settings), Routes(settings)
    try:
        partitions = (await client.answer(["sinfo", "--noheader", "--format=%R"])).split()
        release = (await client.answer(["sinfo", "--version"])).strip()
        findings = [good("Slurm controller", f"answers ({release}).")]
        wanted = [name for name in routes.named_partitions if name]
        unknown = [name for name in wanted if name not in partitions]
        if unknown:
            text = f"there is no partition {', '.join(unknown)}."
            advice = (
                f"Set [engines.slurm] partition to one of {', '.join(sorted(set(partitions)))}."
            )
            cause = "sinfo lists no such one to this user."
            return [*findings, bad("Slurm partition", text, cause=cause, remedy=advice)]
        lines = await client.ask(list_nodes(routes.partitions))
        config = parse_config(await client.answer(SHOW_CONFIG))
    except ClusterUnavailable as failure:
        return [
            bad("Slurm controller", "cannot be asked.", cause=f"{failure}.", remedy=_CONTROLLER)
        ]
    text = ", ".join(name or "the cluster's default one" for name in routes.named_partitions)
    findings += [good("Slurm partition", f"{text}."), _nodes(lines, routes)]
    has_gpus = any(gres.name == "gpu" for line in lines for gres in line.gres)
    return [*findings, *on_nodes(config, has_gpus=has_gpus)]


async def _users(settings: SlurmSettings, cache: Path | None) -> list[Finding]:
    """Check the users as whom projects' jobs run: whether they exist, whether Slurm accepts their jobs, and
    whether they can read what the jobs run in."""
    users, client, wrong = Users(settings), SlurmClient(settings), list[str]()
    seen: set[Owner] = set()
    partitions = Routes(settings).named_partitions
    for project in settings.users:
        try:
            owner = await users.owner(project)
            user = await users.named(owner.user)
        except ClusterRefused as failure:
            wrong.append(str(failure))
            continue
        if user is None or owner in seen:
            continue
        seen.add(owner)
        for place in _places(cache):
            try:
                await client.answer(
                    ["/bin/sh", "-c", f"{place.test} {quote(str(place.path))}"], user
                )
            except ClusterUnavailable:
                wrong.append(f"user {owner.user} cannot {place.what} {place.path}")
        for partition in partitions:
            account = owner.account or settings.any_account
            where = f" in {partition}" if partition else ""
            try:
                await client.answer(commands.try_job(partition, account, settings.qos), user)
            except ClusterUnavailable as failure:
                charged = f" on account {account}" if account else ""
                wrong.append(f"jobs of user {owner.user}{where}{charged}: {failure}")
    if not wrong:
        names = ", ".join(sorted({owner.user for owner in seen})) or "the service's own"
        return [good("users of projects", f"{names}: jobs of theirs would start.")]
    problems = f"{'; '.join(dict.fromkeys(wrong))}."
    return [bad("users of projects", problems, cause=_NOT_LET, remedy=_LET)]


class _Place(Struct, frozen=True):
    """A file or directory that a user's programs need."""

    path: Path
    #: A shell command that tests it by its exit status, to be followed by the path.
    test: str
    #: What programs do with it: a verb for messages.
    what: str


def _places(cache: Path | None) -> Iterator[_Place]:
    yield _Place(Path(sys.executable), "test -x", "run")
    yield _Place(Path(trainshed.__file__), "test -r", "read")
    if cache and cache.parent.exists():
        # The cache itself is opened by the service.
        yield _Place(cache.parent, "test -x", "enter")


def on_nodes(config: Mapping[str, str], *, has_gpus: bool) -> Iterator[Finding]:
    """Yield what holds on nodes. `config`: as `queries.parse_config` returns it. Pure."""
    by_tasks = "task/cgroup" in config.get("taskplugin", "")
    if by_tasks and config.get("constrainramspace") == "yes":
        yield good(
            "memory on nodes",
            "Slurm holds each allocation to its memory; replicas within it are held by their agent.",
        )
    else:
        yield less(
            "memory on nodes",
            "replicas are held by their agent, jobs of others to nothing.",
            cause="Slurm's configuration lets an allocation take more memory than it was given.",
            remedy="Set TaskPlugin=task/cgroup (slurm.conf), ConstrainRAMSpace=yes (cgroup.conf).",
        )
    if "memory" not in config.get("selecttypeparameters", "").lower():
        yield less(
            "memory counted",
            "jobs of others may be given what a replica has.",
            cause="Slurm's configuration does not count memory.",
            remedy="Set SelectType=select/cons_tres, SelectTypeParameters=CR_Core_Memory (slurm.conf).",
        )
    if has_gpus and by_tasks and config.get("constraindevices") == "yes":
        yield good("GPUs on nodes", "programs reach those of their allocation alone.")
    elif has_gpus:
        yield less(
            "GPUs on nodes",
            "programs reach all of a node's, whatever they were given.",
            cause="Slurm's configuration does not close devices to those who were not given them.",
            remedy="Set TaskPlugin=task/cgroup (slurm.conf), ConstrainDevices=yes (cgroup.conf).",
        )
    if config.get("proctracktype", "") != "proctrack/cgroup":
        yield less(
            "ends of steps",
            "processes of an allocation may outlive it.",
            cause="Slurm finds them by their parents.",
            remedy="Set ProctrackType=proctrack/cgroup (slurm.conf).",
        )


def _nodes(node_lines: Sequence[NodeLine], routes: Routes) -> Finding:
    has_default = any(line.in_default for line in node_lines)
    ways = {line: routes.acceptance(line, has_default=has_default) for line in node_lines}
    lines = sorted((line for line in node_lines if ways[line].open), key=lambda line: line.name)
    states = [
        (line, *node_state(line, reservation=routes.enters_reservation(ways[line])))
        for line in lines
    ]
    up = [line for line, state, _ in states if state is NodeState.UP]
    away = [f"{line.name}: {why}" for line, state, why in states if state is not NodeState.UP]
    some = "; ".join(away[:_TOLD_NODES]) + ("; …" if len(away) > _TOLD_NODES else "")
    advice = "`scontrol update nodename=NAME state=resume` takes one back; `sinfo -R` says why it is away."
    cause = (
        f"Not up: {some}."
        if away
        else "The partitions have no nodes that take jobs of the service."
    )
    if not up:
        text = f"none of {len(lines)} takes work."
        return bad("Slurm nodes", text, cause=cause, remedy=advice)
    cpus, memory = max(line.cpus for line in up), max(line.memory_bytes for line in up)
    gpus = sum(gres.count for line in up for gres in line.gres if gres.name == "gpu")
    text = (
        f"{len(up)} of {len(lines)} take work; the largest has {cpus} CPUs and {memory / 2**30:.1f} GiB; "
        f"{gpus or 'no'} GPUs in all."
    )
    if away:
        return less("Slurm nodes", text, cause=cause, remedy=advice)
    return good("Slurm nodes", text)
