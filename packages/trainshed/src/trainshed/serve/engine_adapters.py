"""Adapters between the service and its engine: secrets for programs, the key that signs links, and limits of
package installations."""

import hashlib
from collections.abc import Callable, Collection, Mapping

from trainshed.access.sealing import KeyUnusable, Sealer, SecretId, Unsealable
from trainshed.core.errors import Unavailable
from trainshed.core.secrets import SecretRef
from trainshed.engines.launch.documents import COVERED, PROGRAM_PORT, HasBuildPlace
from trainshed.engines.port import Engine, EngineUnavailable, LaunchRejected, SecretMissing
from trainshed.replica.sandbox import socket_calls
from trainshed.runtimes.confinement import InstallationTerms
from trainshed.runtimes.port import BuildFailed
from trainshed.serve.settings import Settings
from trainshed.store.sqlite.resources import Secrets


def link_key(owner_token: str) -> bytes:
    """Return the key that signs links to jobs. It remains the same after a restart, and changes when the
    owner's token changes."""
    return hashlib.sha256(b"trainshed web access " + owner_token.encode()).digest()


_CPU_WEIGHT = 400
"""The CPU weight of an installation, the same as for a program with four vCPUs."""
_MEMORY = 8 << 30
"""Memory limit of one installation in bytes, unless a setting limits memory."""
_BUILD_DISK = 32 << 30
"""Maximum bytes that one installation may write."""
_BUILD_TIME = 1800.0
"""Maximum duration of one installation in seconds."""
_REPLICA_PORTS = tuple(range(PROGRAM_PORT, PROGRAM_PORT + socket_calls.PORTS))


def build_terms(
    settings: Settings, engine: Engine, ports: tuple[int, ...] = ()
) -> Callable[[], InstallationTerms]:
    """Return a function that returns the limits and isolation of package installations: the isolation level
    of the engine's programs, and the directories that are hidden from them.

    Call the returned function only after the engine has started. `ports`: the ports that the service listens
    on.
    """

    def terms() -> InstallationTerms:
        if not isinstance(engine, HasBuildPlace):
            raise BuildFailed(
                f"The engine {settings.engine} does not report how programs are isolated on this machine, so "
                "packages of jobs cannot be installed. Use an image that contains them."
            )
        try:
            place = engine.build_place()
        except EngineUnavailable as failure:
            raise BuildFailed(f"The packages cannot be installed yet: {failure}.") from None
        host = place.host
        memory = settings.memory_per_replica << 20
        return InstallationTerms(
            level=host.level,
            hidden=place.hidden,
            covered=COVERED,
            visible=place.visible,
            memory_bytes=min(memory or _MEMORY, host.memory_bytes),
            processes=host.process_limit(settings.max_processes or None),
            disk_bytes=_BUILD_DISK,
            seconds=_BUILD_TIME,
            cpu_weight=_CPU_WEIGHT,
            bases=host.bases,
            kept_ports=(*ports, *_REPLICA_PORTS),
        )

    return terms


class Vault:
    """Decrypts secrets for programs that are about to start. `job_token`: returns the token with which the
    replicas of a job authenticate each other, by the job's UID."""

    def __init__(self, secrets: Secrets, sealer: Sealer, job_token: Callable[[int], str]) -> None:
        self._secrets = secrets
        self._sealer = sealer
        self._job_token = job_token

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """Return the values of secrets. Each stored secret costs one lookup in the store and a few
        microseconds of decryption."""
        made = {ref: self._job_token(ref.job_uid) for ref in refs if ref.job_uid}
        stored = [ref for ref in refs if ref not in made]
        return made | await self._read_stored(project_id, stored) if stored else made

    async def _read_stored(self, project_id: str, refs: Collection[SecretRef]) -> dict[SecretRef, str]:
        try:
            secrets = await self._secrets.find(project_id, refs)
        except Unavailable as failure:
            raise EngineUnavailable(f"The secrets cannot be read: {failure}") from None
        if missing := sorted(ref for ref in refs if ref not in secrets):
            raise SecretMissing(
                f"The project {project_id} no longer has the secret "
                f"{' nor the secret '.join(map(str, missing))}: it was deleted after the job was created. "
                "Set it with `trainshed secrets set`, and submit the job again."
            )
        ids = {ref: SecretId(project_id, ref.name, secrets[ref].version) for ref in refs}
        try:
            return {ref: self._sealer.open(secrets[ref].content, ids[ref]) for ref in refs}
        except (Unsealable, KeyUnusable) as failure:
            raise LaunchRejected(str(failure)) from None
