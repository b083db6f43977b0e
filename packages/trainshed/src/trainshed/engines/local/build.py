"""Builds the local engine for a service, by its settings."""

from pathlib import Path
from typing import Final

from trainshed.engines.local.autopsies import Keeping
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.registry import USAGE_EVERY, EngineContext

_WARM_IDLE: Final = 600.0
"""Seconds without a program after which a preloader ends."""


def new_engine(context: EngineContext) -> LocalEngine:
    """Build the engine. The service has checked the settings (`serve.settings`): all of them are set, by
    their names in docs/settings.md."""
    table = context.settings
    options = Options(
        access=context.access,
        hidden=context.hidden,
        keeping=Keeping(round(table["autopsy_ttl"] * 3600e9)),
        now=context.now,
        nodes=table["nodes"],
        secrets=context.secrets,
        lease=table["lease"],
        level=table["isolation"],
        visible=tuple(Path(path) for path in table["visible_paths"].split(":") if path),
        processes=table["max_processes"],
        kept_ports=context.kept_ports,
        usage_every=USAGE_EVERY,
        disk_enforced=table["enforce_disk"],
        warm_idle=_WARM_IDLE,
        node_vcpus=table["node_cpus"],
        node_memory_bytes=round(table["node_memory"] * 2**30),
        node_accelerators=table["node_accelerators"],
    )
    return LocalEngine(context.data, options)
