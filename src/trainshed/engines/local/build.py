"""Builds the local engine for a service, by the settings of `[engines.local]`."""

from pathlib import Path

from trainshed.engines.local.autopsies import Keeping
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.registry import EngineContext


def new_engine(context: EngineContext) -> LocalEngine:
    """Build the engine. The service has checked the settings (`serve.settings`): all of them are set, by
    their names in docs/settings.md."""
    table = context.settings
    options = Options(
        access=context.access,
        hidden=context.hidden,
        keeping=Keeping(
            round(table["autopsy_ttl"] * 3600e9), round(table["autopsy_limit"] * 2**30)
        ),
        now=context.now,
        nodes=table["nodes"],
        secrets=context.secrets,
        lease=table["lease"],
        level=table["isolation"],
        visible=tuple(Path(path) for path in table["visible_paths"].split(":") if path),
        processes=table["max_processes"],
        kept_ports=context.kept_ports,
        usage_every=table["usage_every"],
        disk_enforced=table["enforce_disk"],
        warm_idle=table["warm_idle"],
        node_vcpus=table["node_cpus"],
        node_memory_bytes=round(table["node_memory"] * 2**30),
        node_accelerators=table["node_accelerators"],
    )
    return LocalEngine(context.data, options)
