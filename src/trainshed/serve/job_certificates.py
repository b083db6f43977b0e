"""The certificates by which workers know the reducers of their job (SPEC §7): by an authority that signs for this job alone.

Nothing of it is stored. The authority's key follows from the service's key for jobs and the job's number, so that workers
believe a reducer that is started again later, by a service that was started again itself.
"""

import datetime
from dataclasses import dataclass
from typing import Final

_BEGINS: Final = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC).timestamp()
_ENDS: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC).timestamp()
"""That is: no end of its own (RFC 5280, 4.1.2.5). It is worth as much as the job's token and as long, and no clock of a
machine that is wrong keeps a reducer from being believed."""
_NAME: Final = "reducer"
"""Workers know reducers by addresses, and compare no names."""


@dataclass(frozen=True, slots=True)
class JobCertificate:
    """As PEM: whom workers are to believe, and what a reducer shows, with its key."""

    authority: str
    certificate: str
    key: str


def job_certificate(job_uid: int, seed: bytes) -> JobCertificate:
    """A new one by the job's authority, whose key follows from `seed` (`JobTokens.authority_seed`). Takes a millisecond,
    the first time some tens more."""
    # Not before some job asks for it: most services never load it.
    from trainshed.serve.authority import Authority

    authority = Authority.derived(seed, f"Trainshed job {job_uid}", _BEGINS, _ENDS)
    certificate, key = authority.issue((_NAME,), _BEGINS, _ENDS)
    return JobCertificate(authority.certificate_pem().decode(), certificate.decode(), key.decode())
