"""Makes the engine of a local run, with a service's settings, and the source of its program's secrets.

Loaded before all other large modules, because the engine takes a moment to start.
"""

from collections.abc import Collection, Mapping
from pathlib import Path

from trainshed.core.secrets import SecretRef
from trainshed.engines.local.engine import LocalEngine
from trainshed.engines.local.options import Options
from trainshed.engines.local.spawner import ZygoteHandle
from trainshed.engines.port import SecretSource, ServiceAccess
from trainshed.serve import certificates, clock
from trainshed.serve.local_run.storage import socket_of
from trainshed.serve.settings import Settings


def new_engine(
    settings: Settings, directory: Path, secrets: SecretSource, zygote: ZygoteHandle
) -> LocalEngine:
    """Return an engine whose slots and logs are in `directory`, below the data directory."""
    intercepting = certificates.interception_files(settings.data.resolve())
    options = Options(
        access=ServiceAccess(
            storage_socket=socket_of(settings.data).resolve(),
            certificate=intercepting.certificate,
            trust=intercepting.trust,
        ),
        # A program sees what it runs in of the cache, but not what others run in.
        hidden=(settings.data, settings.cache),
        read_only=(intercepting.trust.parent,),
        secrets=secrets,
        lease=settings.lease,
        level=settings.isolation,
        visible=tuple(Path(path) for path in settings.visible_paths.split(":") if path),
        processes=settings.max_processes,
        now=clock.now,
    )
    return LocalEngine(directory, options, zygote=zygote)


class EnvSecrets:
    """The secrets of a run, taken from environment variables, as an engine's source of secrets.

    `values`: all secrets that the program's variables refer to, which was checked before.
    """

    def __init__(self, values: Mapping[SecretRef, str]) -> None:
        self._values = values

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """Return the values, as the protocol says."""
        return {ref: self._values[ref] for ref in refs}
