"""The engine of a local run, by the same settings as a service's, and the secrets that it gives its program.

Loaded before all else that is large: the engine takes a moment to start.
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
    """An engine whose slots and logs are in `directory`, below the data directory."""
    intercepting = certificates.interception_files(settings.data.resolve())
    options = Options(
        access=ServiceAccess(
            storage_socket=socket_of(settings.data).resolve(),
            certificate=intercepting.certificate,
            trust=intercepting.trust,
        ),
        # Of the cache a program sees what it runs in, not what others run in.
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
    """The secrets that a run was given in environment variables, as an engine's source of them.

    `values`: all that the program's variables name, which was checked before.
    """

    def __init__(self, values: Mapping[SecretRef, str]) -> None:
        self._values = values

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """As the protocol says."""
        return {ref: self._values[ref] for ref in refs}
