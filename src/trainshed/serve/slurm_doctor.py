"""What `trainshed doctor` says of a Slurm cluster: whether it can be asked, what it has, and whether nodes
can call this machine. Starts nothing there."""

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainshed.engines.port import NodeState
from trainshed.engines.remote.cluster import ClusterUnavailable
from trainshed.engines.slurm import commands
from trainshed.engines.slurm.client import SlurmClient
from trainshed.engines.slurm.routes import Routes
from trainshed.engines.slurm.settings import SlurmSettings, parse
from trainshed.serve.doctor import Finding

_TOLD_NODES = 5
_LATE = 60
"""Seconds after which a lost node is told late."""


def examine_slurm(table: Mapping[str, Any]) -> Iterator[Finding]:
    """`table`: `[engines.slurm]` of the configuration. Blocks until Slurm has answered, or has not."""
    try:
        settings = parse(table)
    except ValueError as failure:
        yield Finding("Slurm settings", "bad", str(failure).replace("\n", "; ") + ".")
        return
    if not settings.clusters:
        yield from _examine(settings)
    for name in settings.clusters:
        for found in _examine(settings.of_cluster(name)):
            yield replace(found, about=f"{found.about} ({name})")
    yield _port(settings)


def _examine(settings: SlurmSettings) -> Iterator[Finding]:
    """One cluster, and where its nodes call."""
    missing = _missing_command(settings)
    if missing:
        yield Finding("Slurm commands", "bad", missing)
    else:
        where = settings.commands or "on the PATH"
        yield Finding("Slurm commands", "good", f"all there ({where}).")
        yield from asyncio.run(_cluster(settings))
    yield _address(settings)


def _missing_command(settings: SlurmSettings) -> str:
    for name in ("salloc", "srun", "squeue", "sinfo", "scancel"):
        try:
            settings.command(name)
        except FileNotFoundError as failure:
            return f"{failure}."
    return ""


async def _cluster(settings: SlurmSettings) -> list[Finding]:
    client, routes = SlurmClient(settings), Routes(settings)
    try:
        partitions = (await client.answer(["sinfo", "--noheader", "--format=%R"])).split()
        found = [Finding("Slurm controller", "good", "answers.")]
        wanted = [name for name in routes.named_partitions if name]
        unknown = [name for name in wanted if name not in partitions]
        if unknown:
            text = f"there is no partition {', '.join(unknown)}."
            advice = (
                f"Set [engines.slurm] partition to one of {', '.join(sorted(set(partitions)))}."
            )
            return [*found, Finding("Slurm partition", "bad", text, advice)]
        answer = await client.answer(commands.list_nodes(routes.partitions))
        lines = tuple(commands.parse_nodes(answer))
    except ClusterUnavailable as failure:
        advice = (
            "Look whether slurmctld runs, munge runs here with the cluster's key, and `sinfo` works as this "
            "user."
        )
        return [Finding("Slurm controller", "bad", f"{failure}.", advice)]
    except ValueError as failure:
        return [Finding("Slurm controller", "bad", f"its answer is not understood: {failure}.")]
    text = ", ".join(name or "the cluster's default one" for name in routes.named_partitions)
    found += [Finding("Slurm partition", "good", f"{text}."), _nodes(lines, routes)]
    return [*found, *await _what_holds(client, settings, routes, has_gpus=_have_gpus(lines))]


async def _what_holds(
    client: SlurmClient, settings: SlurmSettings, routes: Routes, *, has_gpus: bool
) -> list[Finding]:
    """What jobs may rely on on nodes, as far as the cluster's configuration says it."""
    try:
        config = commands.parse_config(await client.answer(commands.show_config()))
        limits = commands.parse_limits(await client.answer(commands.list_limits()))
    except FileNotFoundError as failure:
        return [Finding("on nodes", "less", f"{failure}.", "scontrol says what holds there.")]
    except (ClusterUnavailable, ValueError) as failure:
        return [Finding("on nodes", "less", f"what holds there is not known: {failure}.")]
    asked = [*settings.extra, *(one for route in settings.machines for one in route.extra or ())]
    has_limit = any(argument.startswith("--time=") for argument in asked)
    return [
        *on_nodes(config, has_gpus=has_gpus),
        *(
            []
            if has_limit
            else [time_limit({n: limits.get(n, "") for n in routes.named_partitions})]
        ),
    ]


def _have_gpus(lines: Sequence[commands.NodeLine]) -> bool:
    return any(gres.name == "gpu" for line in lines for gres in line.gres)


def on_nodes(config: Mapping[str, str], *, has_gpus: bool) -> Iterator[Finding]:
    """`config`: as `commands.parse_config` has it. Pure."""
    as_root = os.geteuid() == 0
    yield Finding(
        "isolation on nodes",
        "good",
        "each node's own: "
        + (
            "own-user, where its kernel has what that needs."
            if as_root
            else "user, where its kernel lets this user make namespaces, else session."
        ),
        "" if as_root else "`srun -w NODE unshare -Ur true` fails where it is session.",
    )
    by_tasks = "task/cgroup" in config.get("taskplugin", "")
    held = by_tasks and config.get("constrainramspace") == "yes"
    yield Finding(
        "memory on nodes",
        "good" if held else "less",
        "Slurm holds each allocation to its memory; replicas within it are held by their agent."
        if held
        else "Slurm holds nobody to his memory: replicas are held by their agent, other jobs are not.",
        ""
        if held
        else "Set TaskPlugin=task/cgroup (slurm.conf), ConstrainRAMSpace=yes (cgroup.conf).",
    )
    counted = "memory" in config.get("selecttypeparameters", "").lower()
    if not counted:
        yield Finding(
            "memory counted",
            "less",
            "Slurm does not count memory: jobs of others may be given what a replica has.",
            "Set SelectType=select/cons_tres, SelectTypeParameters=CR_Core_Memory (slurm.conf).",
        )
    if has_gpus:
        kept = by_tasks and config.get("constraindevices") == "yes"
        yield Finding(
            "GPUs on nodes",
            "good" if kept else "less",
            "programs reach those of their allocation alone."
            if kept
            else "programs reach all of a node's, whatever they were given.",
            ""
            if kept
            else "Set TaskPlugin=task/cgroup (slurm.conf), ConstrainDevices=yes (cgroup.conf).",
        )
    if config.get("proctracktype", "") != "proctrack/cgroup":
        yield Finding(
            "ends of steps",
            "less",
            "Slurm finds an allocation's processes by their parents: some may outlive it.",
            "Set ProctrackType=proctrack/cgroup (slurm.conf).",
        )
    seconds = _seconds(config.get("slurmdtimeout", ""))
    if seconds > _LATE:
        yield Finding(
            "lost nodes",
            "less",
            f"Slurm says so after {seconds} s (SlurmdTimeout), or the lease is over before.",
            f"A lower SlurmdTimeout (slurm.conf), such as {_LATE}, or lease in [engines.slurm].",
        )


def time_limit(limits: Mapping[str, str]) -> Finding:
    """`limits`: as `commands.parse_limits` has them. Pure."""
    bounded = [
        f"{name or 'the default partition'} after {limit}"
        for name, limit in sorted(limits.items())
        if limit
    ]
    if not bounded:
        return Finding("time limit", "good", "none: jobs run until they end.")
    return Finding(
        "time limit",
        "less",
        f"Slurm ends what does not say how long it runs: {', '.join(bounded[:_TOLD_NODES])}; that counts as "
        "a lost node.",
        'Set [engines.slurm] extra = ["--time=7-00:00:00"], up to what the partition allows, or take a '
        "partition without a limit.",
    )


def _seconds(text: str) -> int:
    """ "300 sec"."""
    number = text.partition(" ")[0]
    return int(number) if number.isdecimal() else 0


def _nodes(told: Sequence[commands.NodeLine], routes: Routes) -> Finding:
    has_default = any(line.in_default for line in told)
    ways = {line: routes.acceptance(line, has_default=has_default) for line in told}
    lines = sorted((line for line in told if ways[line].open), key=lambda line: line.name)
    states = [
        (line, *commands.node_state(line, reservation=routes.enters_reservation(ways[line])))
        for line in lines
    ]
    up = [line for line, state, _ in states if state is NodeState.UP]
    away = [f"{line.name}: {why}" for line, state, why in states if state is not NodeState.UP]
    some = "; ".join(away[:_TOLD_NODES]) + ("; …" if len(away) > _TOLD_NODES else "")
    advice = (
        f"Not up: {some}. `scontrol update nodename=NAME state=resume` takes one back."
        if away
        else ""
    )
    if not up:
        return Finding("Slurm nodes", "bad", f"none of {len(lines)} takes work.", advice)
    cpus, memory = max(line.cpus for line in up), max(line.memory_bytes for line in up)
    gpus = sum(gres.count for line in up for gres in line.gres if gres.name == "gpu")
    text = (
        f"{len(up)} of {len(lines)} take work; the largest has {cpus} CPUs and {memory / 2**30:.1f} GiB; "
        f"{gpus or 'no'} GPUs in all."
    )
    return Finding("Slurm nodes", "less" if away else "good", text, advice)


def _address(settings: SlurmSettings) -> Finding:
    name = settings.service_address
    advice = (
        "Set [engines.slurm] address to a name or an address at which nodes reach this machine."
    )
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError as failure:
        return Finding("address for nodes", "bad", f"{name} is not resolved: {failure}.", advice)
    numbers = ", ".join(sorted(found))
    if all(ipaddress.ip_address(number.partition("%")[0]).is_loopback for number in found):
        text = f"{name} is this machine's own loopback ({numbers}): nodes would call themselves."
        return Finding("address for nodes", "bad", text, advice)
    return Finding("address for nodes", "good", f"{name} ({numbers}), as it is resolved here.")


def _port(settings: SlurmSettings) -> Finding:
    if not settings.port:
        text = "any free one, the same again after a restart."
        return Finding("port for nodes", "good", text, "Behind a firewall, set one and open it.")
    advice = "A service of this configuration that runs has it; else set [engines.slurm] port to another."
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((settings.host, settings.port))
    except OSError as failure:
        verdict = "less" if failure.errno == errno.EADDRINUSE else "bad"
        text = f"{settings.port} on {settings.host} cannot be had: {failure.strerror}."
        return Finding("port for nodes", verdict, text, advice)
    return Finding("port for nodes", "good", f"{settings.port} on {settings.host} is free.")
