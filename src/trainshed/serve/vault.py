"""Opens sealed secrets for programs that are about to start (`engines.port.SecretSource`).

Also issues the certificates by which workers identify the reducers of their job (spec/reduction#security), by
an authority that only signs for this job. None of it is stored: the authority's key follows from the
service's key for jobs and the job's uid. So workers trust a reducer that is started again later, even by a
service that was restarted itself.
"""

import asyncio
import contextlib
import datetime
from collections.abc import Callable, Collection, Mapping
from typing import Final

from msgspec import Struct

from trainshed.access.sealing import KeyUnusable, Sealer, SecretId, Unsealable
from trainshed.core.errors import Unavailable
from trainshed.core.secrets import Made, SecretRef
from trainshed.core.units import Nanos
from trainshed.engines.port import EngineUnavailable, LaunchRejected, SecretMissing
from trainshed.eventloop.background import Crew
from trainshed.store.secrets import Secrets

_SAME_USE = 60 * 10**9
"""ns within which uses of one version are recorded only once: starts do not wait for that, but the disk is
shared."""
_BEGINS: Final = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC).timestamp()
_ENDS: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC).timestamp()
"""This time means "no end of its own" (RFC 5280, 4.1.2.5). The certificate is worth as much as the job's
token, and for as long, and a machine's wrong clock does not make workers reject a reducer."""
_NAME: Final = "reducer"
"""Workers know reducers by addresses, and do not compare names."""


class JobCertificate(Struct, frozen=True):
    """In PEM: the authority that workers trust, and a reducer's certificate with its key."""

    authority: str
    certificate: str
    key: str


class Vault:
    """Opens sealed secrets for programs that are about to start."""

    def __init__(
        self,
        secrets: Secrets,
        sealer: Sealer,
        now: Callable[[], int],
        job_token: Callable[[int], str],
        job_certificate: Callable[[int], JobCertificate],
    ) -> None:
        self._secrets = secrets
        self._sealer = sealer
        #: Returns nanoseconds since the epoch.
        self._now = now
        #: Returns the token by which a job's replicas know each other, for the job's uid; `job_certificate`
        #: takes the uid as well.
        self._job_token = job_token
        self._job_certificate = job_certificate
        self._noted: dict[SecretId, int] = {}
        self._noting = Crew()

    async def values(self, project_id: str, refs: Collection[SecretRef]) -> Mapping[SecretRef, str]:
        """Return the values, as the protocol says; each takes a point lookup in the store and a few
        microseconds of decryption."""
        made = await self._made([ref for ref in refs if ref.made])
        stored = [ref for ref in refs if ref not in made]
        return made | await self._stored(project_id, stored) if stored else made

    async def _made(self, refs: Collection[SecretRef]) -> dict[SecretRef, str]:
        """Return the secrets that are generated for jobs; a certificate and its key belong together."""
        uids = {ref.job_uid for ref in refs if ref.made is not Made.TOKEN}
        certificates = {uid: await asyncio.to_thread(self._job_certificate, uid) for uid in uids}
        values: dict[SecretRef, str] = {}
        for ref in refs:
            match ref.made:
                case Made.AUTHORITY:
                    values[ref] = certificates[ref.job_uid].authority
                case Made.CERTIFICATE:
                    values[ref] = certificates[ref.job_uid].certificate
                case Made.KEY:
                    values[ref] = certificates[ref.job_uid].key
                case _:
                    values[ref] = self._job_token(ref.job_uid)
        return values

    async def _stored(self, project_id: str, refs: Collection[SecretRef]) -> dict[SecretRef, str]:
        try:
            secrets = await self._secrets.find(project_id, refs)
        except Unavailable as failure:
            raise EngineUnavailable(f"The secrets cannot be read: {failure}") from None
        if missing := sorted(ref for ref in refs if ref not in secrets):
            raise SecretMissing(
                f"The project {project_id} has no secret {' and no secret '.join(map(str, missing))} any "
                "more: it was deleted after the job was created. Set it again with `trainshed secrets "
                "set`, and submit the job anew."
            )
        ids = {ref: SecretId(project_id, ref.name, secrets[ref].version) for ref in refs}
        try:
            values = {ref: self._sealer.open(secrets[ref].content, ids[ref]) for ref in refs}
        except (Unsealable, KeyUnusable) as failure:
            raise LaunchRejected(str(failure)) from None
        self._note(project_id, set(ids.values()))
        return values

    def _note(self, project_id: str, used: set[SecretId]) -> None:
        """Have the time of this use stored, in the background."""
        now = self._now()
        fresh = [
            secret for secret in used if now - self._noted.get(secret, -_SAME_USE) >= _SAME_USE
        ]
        if not fresh:
            return
        self._noted.update(dict.fromkeys(fresh, now))
        self._noting.begin(self._store_use(project_id, fresh, now), "noting the use of secrets")

    async def _store_use(self, project_id: str, used: list[SecretId], at: Nanos) -> None:
        # Only informs those who want to know whether a secret may be deleted, so no start fails because of
        # it.
        with contextlib.suppress(Unavailable):
            await self._secrets.note_use(
                project_id, [(secret.name, secret.version) for secret in used], at
            )


def job_certificate(job_uid: int, seed: bytes) -> JobCertificate:
    """Return a new certificate by the job's authority, whose key follows from `seed`
    (`JobTokens.authority_seed`). Takes a millisecond, the first time some tens more."""
    # Imported only when some job asks for it: most services never load it.
    from trainshed.access.authority import Authority

    authority = Authority.derived(seed, f"Trainshed job {job_uid}", _BEGINS, _ENDS)
    certificate, key = authority.issue((_NAME,), _BEGINS, _ENDS)
    return JobCertificate(authority.certificate_pem().decode(), certificate.decode(), key.decode())
