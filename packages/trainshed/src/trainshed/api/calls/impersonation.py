"""Prevents a confused deputy: callers cannot create jobs that have more rights than they have themselves."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

from trainshed.access.account_tokens import account_fault
from trainshed.access.policy import project_of_account
from trainshed.access.principals import Principal
from trainshed.api.calls.services import Services
from trainshed.core import secrets
from trainshed.core.errors import FailedPrecondition, NotFound, PermissionDenied, Unauthenticated
from trainshed.core.lifecycle.records import ActingJob, Actor, person_of
from trainshed.core.names import JobUid, ids_by_number, normalize_email
from trainshed.store.sqlite.reader import Reader

_ACT_AS: Final = "iam.serviceAccounts.actAs"


_ACCOUNT_FIELDS: Final = frozenset({"serviceAccount", "service_account"})
"""The field that contains the service account, in camelCase and in snake_case."""


def reject_escalation(principal: Principal, services: Services, texts: Sequence[tuple[str, str]]) -> None:
    """Reject a job that would have more rights than its creator.

    - A user may choose only service accounts that the user may act as.
    - A program may create only jobs with its own service account and without secrets.

    Jobs whose service account is disabled or was deleted are also rejected. `texts`: the fields and values of
    the request. Raises FailedPrecondition, and PermissionDenied with all rights that the creator lacks.
    """
    accounts = {normalize_email(text) for name, text in texts if name in _ACCOUNT_FIELDS}
    accounts -= {"", principal.email}
    if principal.program is None:
        require_act_as(principal, accounts)
    else:
        beyond = [f"the service account {account}" for account in sorted(accounts)]
        refs = (ref for _, text in texts for ref in secrets.references(text))
        beyond += dict.fromkeys(f"the secret {ref.name!r}" for ref in refs)
        if beyond:
            raise PermissionDenied(
                f"{principal.email} is a program and can create only jobs with its own rights, but this job "
                f"requests {', '.join(beyond)}. Remove these rights from the job, or ask a user to submit it."
            )
    for account in sorted(accounts):
        book = services.access.book
        if lost := account_fault(account, None, book):
            remedy = "gcloud iam service-accounts " + (
                f"enable {account}" if account in book.accounts else f"create {account.partition('@')[0]}"
            )
            raise FailedPrecondition(
                f"The job's service account {account} {lost}, so all requests of its programs would be "
                f"rejected. Run {remedy}, or submit the job as another account."
            )


def require_act_as(principal: Principal, accounts: Iterable[str | None]) -> None:
    """Check that the principal may run code as these service accounts.

    Allowed are the principal's own account, the default account (None), and accounts for which the principal
    has `actAs` in the account's project. Raises PermissionDenied.
    """
    homes = {name: project_of_account(name) for name in accounts if name and name != principal.email}
    numbers = ids_by_number(principal.rights.projects) if homes else {}
    denied = [
        account for account, home in homes.items() if not principal.may(_ACT_AS, numbers.get(home, home))
    ]
    if denied:
        raise PermissionDenied(
            f"{principal.email} may not run code as the service account {', '.join(sorted(denied))}. This "
            f"needs the permission {_ACT_AS} in the project of the account, which the role "
            "roles/iam.serviceAccountUser contains. Ask an owner of that project for the role, or leave "
            "serviceAccount out."
        )


def texts_of(public: object) -> Iterator[tuple[str, str]]:
    """Yield all texts of a request with their field names. Labels are omitted."""
    parts: list[tuple[str, object]] = [("", public)]
    # The loop extends `parts` while it runs. Nested generators would take twice as long.
    for name, value in parts:
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, dict):
            parts += [item for item in cast("dict[str, Any]", value).items() if item[0] != "labels"]
        elif isinstance(value, list):
            parts += [("", part) for part in cast("list[Any]", value)]


async def actor_of(reader: Reader, principal: Principal) -> Actor:
    """Return the principal in the form that is stored with its jobs. Raises Unauthenticated if it is a
    program whose job was deleted."""
    if principal.program is None:
        return Actor(principal.email)
    uid = JobUid(principal.program.job_uid)
    try:
        job, _ = await reader.job_by_uid(uid)
    except NotFound:
        raise Unauthenticated(
            f"The access token belongs to the job {uid}, which does not exist. Use your own token."
        ) from None
    creator = job.creator
    acting = creator.job if creator is not None else None
    root = acting.root if acting else uid
    return Actor(principal.email, ActingJob(uid, job.name, root, person_of(creator)))
