"""The checks of `trainshed doctor` for a Slurm cluster: its controller, its resources, and its access to this
machine. The checks start no jobs."""

import asyncio
import os
import pwd
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from msgspec import Struct

import trainshed
from trainshed.engines.findings import Finding, finding_builder
from trainshed.engines.port import NodeState
from trainshed_cluster.remote.cluster import ClusterRefused, ClusterUnavailable, Owner
from trainshed_cluster.remote.options import check_address
from trainshed_cluster.slurm import commands
from trainshed_cluster.slurm.client import SlurmClient
from trainshed_cluster.slurm.queries import (
    SHOW_CONFIG,
    SHOW_PARTITIONS,
    Partition,
    list_nodes,
    parse_config,
    parse_partitions,
)
from trainshed_cluster.slurm.records import NodeLine, node_state
from trainshed_cluster.slurm.routes import Routes
from trainshed_cluster.slurm.settings import SlurmSettings, parse
from trainshed_cluster.slurm.users import UnixUser, Users

_MAX_NODES = 5
_finding = finding_builder(__file__)


def examine_slurm(table: Mapping[str, Any], cache: Path | None = None) -> Iterator[Finding]:
    """Yield the findings. Blocks until Slurm has responded or failed.

    Args:
        table: `[engines.slurm]` of the configuration.
        cache: The runtimes' directory; None = it is not checked.
    """
    try:
        settings = parse(table)
    except ValueError as failure:
        yield _finding("settings", reason=str(failure).replace("\n", "; "))
        return
    yield from _examine(settings, cache)


def _examine(settings: SlurmSettings, cache: Path | None) -> Iterator[Finding]:
    """Check one cluster, and this machine's address for its nodes."""
    try:
        settings.require_commands()
    except FileNotFoundError as missing:
        yield _finding("no_commands", missing=missing)
    else:
        yield _finding("commands", where=settings.commands or "on the PATH")
        cluster, partitions = asyncio.run(_cluster(settings))
        yield from cluster
        if partitions:
            yield from asyncio.run(_jobs(settings, partitions, cache))
    yield check_address("slurm", "nodes", settings.address)


async def _cluster(settings: SlurmSettings) -> tuple[list[Finding], dict[str, Partition]]:
    """Check the controller, the partitions and the nodes. Returns the findings, and the partitions by name.
    The partitions are empty if the checks of jobs would be useless."""
    client, routes = SlurmClient(settings), Routes(settings)
    try:
        partitions = parse_partitions(await client.run(SHOW_PARTITIONS))
        release = (await client.run(["sinfo", "--version"])).strip()
        answers = _finding("controller", release=release)
        wanted = [name for name in routes.named_partitions if name]
        if unknown := [name for name in wanted if name not in partitions]:
            known = ", ".join(sorted(filter(None, partitions)))
            return [answers, _finding("no_partition", names=", ".join(unknown), known=known)], {}
        lines = await client.query(list_nodes(routes.partitions))
        config = parse_config(await client.run(SHOW_CONFIG))
    except ClusterUnavailable as failure:
        return [_finding("no_controller", failure=failure)], {}
    names = ", ".join(name or "the cluster's default one" for name in routes.named_partitions)
    has_gpus = any(gres.name == "gpu" for line in lines for gres in line.gres)
    return [
        answers,
        _partitions(partitions, routes) or _finding("partition", names=names),
        _nodes(lines, routes),
        *on_nodes(config, has_gpus=has_gpus),
    ], partitions


def _partitions(partitions: Mapping[str, Partition], routes: Routes) -> Finding | None:
    """Return the finding about partitions that start no jobs; None = all partitions start jobs. The finding
    is an error if some jobs can use only such partitions."""
    down = {
        name: partitions[name].state
        for name in routes.named_partitions
        if name in partitions and partitions[name].state != "UP"
    }
    if not down:
        return None
    ways = [partition.split(",") for partition, _, _ in routes.destinations]
    row = "partition_down" if any(down.keys() >= {*way} for way in ways) else "partition_partly"
    states = ", ".join(f"{name or 'the default one'} is {state}" for name, state in down.items())
    return _finding(row, states=states, name=next(iter(down)) or "NAME")


async def _jobs(
    settings: SlurmSettings, partitions: Mapping[str, Partition], cache: Path | None
) -> list[Finding]:
    """Check the users and accounts of projects' jobs: whether the users exist, whether Slurm would start
    their jobs, and whether they can read the files of the jobs."""
    users, client, wrong = Users(settings), SlurmClient(settings), list[str]()
    seen: set[Owner] = set()
    for project in settings.users or {"*": "", **settings.accounts}:
        try:
            owner = await users.owner(project)
            user = await users.user_of(owner.user)
        except ClusterRefused as failure:
            wrong.append(str(failure))
            continue
        if owner in seen:
            continue
        seen.add(owner)
        who = f"user {owner.user}" if owner.user else "the service's user"
        for required in _required_paths(cache) if user else ():
            try:
                await client.run(["/bin/sh", "-c", f"{required.test} {quote(str(required.path))}"], user)
            except ClusterUnavailable:
                wrong.append(f"{who} cannot {required.what} {required.path}")
        default = await _default_account(client, partitions, user)
        for partition, general, qos in Routes(settings).destinations:
            account = owner.account or general
            ways = [
                partitions[name].rejects(name, account or default, qos)
                for name in partition.split(",")
                if name in partitions
            ]
            if ways and all(ways):
                wrong += filter(None, ways)
                continue
            where = f" in {partition}" if partition else ""
            try:
                await client.run(commands.try_job(partition, account, qos), user)
            except ClusterUnavailable as failure:
                charged = f" on account {account}" if account else ""
                wrong.append(f"jobs of {who}{where}{charged}: {failure}")
    if not wrong:
        names = ", ".join(sorted({owner.user or "the service's user" for owner in seen}))
        return [_finding("users", names=names)]
    return [_finding("users_not_let", problems="; ".join(dict.fromkeys(wrong)))]


async def _default_account(
    client: SlurmClient, partitions: Mapping[str, Partition], user: UnixUser | None
) -> str:
    """Return the account that Slurm charges for a user's jobs if the jobs specify no account. "" = the user
    has no such account, or no partition restricts accounts."""
    if all(entry.accounts is None and not entry.denied_accounts for entry in partitions.values()):
        return ""
    name = user.name if user else pwd.getpwuid(os.geteuid()).pw_name
    try:
        return (await client.run(commands.show_default_account(name))).strip()
    except ClusterUnavailable:
        return ""  # Without accounting, sacctmgr fails, and users have no accounts.


class _RequiredPath(Struct, frozen=True):
    """A file or directory that a user's programs need."""

    path: Path
    #: Shell command that checks the user's access. The path is appended as the last argument. The exit status
    #: is 0 if the user has access.
    test: str
    #: Verb for messages: what programs do with the path, such as "enter".
    what: str


def _required_paths(cache: Path | None) -> Iterator[_RequiredPath]:
    yield _RequiredPath(Path(sys.executable), "test -x", "run")
    yield _RequiredPath(Path(trainshed.__file__), "test -r", "read")
    if cache and cache.parent.exists():
        # The service makes the cache itself accessible to other users, but not the cache's parent directory.
        yield _RequiredPath(cache.parent, "test -x", "enter")


def on_nodes(config: Mapping[str, str], *, has_gpus: bool) -> Iterator[Finding]:
    """Yield the findings about the isolation of programs on nodes. `config`: result of
    `queries.parse_config`. Pure."""
    by_tasks = "task/cgroup" in config.get("taskplugin", "")
    is_held = by_tasks and config.get("constrainramspace") == "yes"
    yield _finding("memory" if is_held else "memory_not_held")
    if "memory" not in config.get("selecttypeparameters", "").lower():
        yield _finding("memory_not_counted")
    if has_gpus:
        is_closed = by_tasks and config.get("constraindevices") == "yes"
        yield _finding("gpus" if is_closed else "gpus_not_closed")
    if config.get("proctracktype", "") != "proctrack/cgroup":
        yield _finding("ends_of_steps")


def _nodes(node_lines: Sequence[NodeLine], routes: Routes) -> Finding:
    has_default = any(line.in_default for line in node_lines)
    ways = {line: routes.acceptance(line, has_default=has_default) for line in node_lines}
    lines = sorted((line for line in node_lines if ways[line].open), key=lambda line: line.name)
    states = [(line, *node_state(line, reservation=routes.enters_reservation(ways[line]))) for line in lines]
    up = [line for line, state, _ in states if state is NodeState.UP]
    away = [f"{line.name}: {why}" for line, state, why in states if state is not NodeState.UP]
    some = "; ".join(away[:_MAX_NODES]) + ("; …" if len(away) > _MAX_NODES else "")
    if not up:
        return _finding("no_nodes", count=len(lines), away=some or "there are no nodes")
    return _finding(
        "nodes_away" if away else "nodes",
        away=some,
        up=len(up),
        count=len(lines),
        cpus=max(line.cpus for line in up),
        memory=max(line.memory_bytes for line in up) / 2**30,
        gpus=sum(gres.count for line in up for gres in line.gres if gres.name == "gpu") or "no",
    )
