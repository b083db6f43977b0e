"""Nodes and quotas as people see them: what there is, what of it is used and by whom."""

from collections.abc import Mapping

from trainshed.core.capacity import NodeStatus, QuotaStatus
from trainshed.scheduler.snapshot import Snapshot


def node_statuses(snapshot: Snapshot, causes: Mapping[str, str]) -> tuple[NodeStatus, ...]:
    """Every node that the engine names, by name. `causes`: why one is in its condition."""
    replicas: dict[str, list[str]] = {}
    for entry in snapshot.entries.values():
        for replica, node in entry.standing.places:
            replicas.setdefault(node, []).append(f"{entry.gang.name} {replica}")
    found: list[NodeStatus] = []
    for name, node in sorted(snapshot.nodes.items()):
        room = node.room
        if room is None:
            continue
        used = zip(node.layout, node.used, strict=False)
        found.append(
            NodeStatus(
                name=name,
                condition=room.condition,
                cause=causes.get(name, ""),
                vcpus=room.vcpus,
                memory_bytes=room.memory_bytes,
                accelerators=room.accelerators,
                used_vcpus=node.used[-2] / 1000,
                used_memory_bytes=node.used[-1],
                used_accelerators=tuple((kind, count) for kind, count in used if count),
                replicas=tuple(sorted(replicas.get(name, ()))),
            )
        )
    return tuple(found)


def quota_statuses(snapshot: Snapshot, project_id: str = "") -> tuple[QuotaStatus, ...]:
    """Every quota that is set, used or waited for, of one project or of all; by project, region and metric."""
    keys = {*snapshot.meters, *snapshot.quotas_set()}
    found: list[QuotaStatus] = []
    for key in sorted(keys, key=lambda k: (k.project_id, k.region, k.metric)):
        limit, source = snapshot.limit(key)
        meter = snapshot.meters.get(key)
        used, waiting = (meter.used, meter.waiting) if meter else (0, 0)
        if project_id in ("", key.project_id) and (used or waiting or source == "set"):
            found.append(QuotaStatus(key, limit, used / 1000, waiting / 1000, source))
    return tuple(found)
