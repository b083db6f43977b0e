"""Authentication with tokens of the access book, its errors, and the stored form of the book."""

import gc
import sys
import time
import timeit
from collections.abc import Callable

import msgspec
import pytest

from tests.people import add_user, create_authority
from trainshed.access.book import (
    AccessBook,
    AccessFile,
    AccountKey,
    Project,
    ServiceAccount,
    Token,
    book_of,
    documents,
)
from trainshed.access.permissions import OWNER, ROLES, authorize
from trainshed.access.policy import Grant, Policy, member_fault
from trainshed.access.tokens import OWNER_EMAIL, digest_of
from trainshed.core.errors import Unauthenticated

ANA = "ana@corp.example"


def test_token_authenticates_its_user_until_the_token_is_deleted_or_expires() -> None:
    now = 0
    authority, owner = create_authority(lambda: now)
    assert authority.authenticate(f"Bearer {owner}").email == OWNER_EMAIL
    token = add_user(authority, ANA, "roles/viewer", "vision")
    principal = authority.authenticate(f"bearer {token}")
    assert principal.rights.projects == {"vision": ROLES["roles/viewer"]}
    assert (principal.email, principal.rights.everywhere) == (ANA, frozenset())
    (stored,) = authority.book.tokens.values()
    authority.replace(authority.book.with_token(type(stored)(stored.digest, ANA, 0, expires=10)))
    now = 9
    assert authority.principal_of_digest(digest_of(token)) == principal
    now = 10
    with pytest.raises(Unauthenticated, match="not known to this service"):
        authority.authenticate(f"Bearer {token}")
    authority.replace(authority.book.without_tokens([stored.digest]))
    now = 0
    with pytest.raises(Unauthenticated, match="not known to this service"):
        authority.authenticate(f"Bearer {token}")
    for header in (None, "", f"Basic {owner}", "Bearer", f"Bearer {stored.digest}"):
        with pytest.raises(Unauthenticated):
            authority.authenticate(header)


def test_stored_users_and_permissions_are_read_unchanged_and_contain_no_token() -> None:
    authority, owner = create_authority(lambda: 0)
    token = add_user(authority, ANA, "roles/ml.developer", "vision")
    robot = "ci@vision.iam.gserviceaccount.com"
    book = (
        authority.book.with_project(Project("vision", 7, "Vision", {"team": "a"}))
        .with_account(ServiceAccount(robot, "vision", 8))
        .with_key(AccountKey("k1", robot, "-----BEGIN PUBLIC KEY-----", 9))
        .with_grants("nlp", [Grant("nlp", OWNER, f"serviceAccount:{robot}")])
    )
    stored = documents(book)
    assert documents(book_of(stored)) == stored
    file = AccessFile.of(digest_of(owner), stored)
    assert documents(file.book()) == stored
    assert token.encode() not in msgspec.json.encode(file)
    gone = book.without_account(robot, 9)
    assert (gone.accounts, gone.keys, gone.policy.of_project("nlp")) == ({}, {}, frozenset())
    assert gone.tokens == book.tokens
    with pytest.raises(ValueError, match="truncated"):
        book_of({("token", "x"): b"{"})


@pytest.mark.parametrize(
    ("member", "fault"),
    [
        ("user:ana@corp.example", ""),
        ("serviceAccount:ci@p.iam.gserviceaccount.com", ""),
        ("user:ci@p.iam.gserviceaccount.com", "write serviceAccount:ci@p"),
        ("serviceAccount:ana@corp.example", "write user:ana@corp.example"),
        ("user:ana", "is not an e-mail address"),
        ("user:", "is not an e-mail address"),
        ("allUsers", "none of user:EMAIL, serviceAccount:EMAIL and group:NAME"),
        ("group:ml-team", ""),
        ("group:all of them", "is not a name of a group"),
        ("ana@corp.example", "none of user:EMAIL, serviceAccount:EMAIL and group:NAME"),
    ],
)
def test_malformed_policy_member_is_rejected(member: str, fault: str) -> None:
    words = member_fault(member) or ""
    assert fault in words
    assert bool(words) == bool(fault)


def test_cost_of_authorization_is_independent_of_the_number_of_users() -> None:
    """The user has a role in each project. The cost is the number of calls, which is reproducible."""

    def submits(people: int, projects: int) -> Callable[[], None]:
        emails = [f"person{number}@corp.example" for number in range(people)]
        authority, _ = create_authority(lambda: 0)
        places = [(email, f"p{number % projects}") for number, email in enumerate(emails)]
        places += [(emails[3], f"p{number}") for number in range(projects)]
        policy = Policy(Grant(at, "roles/aiplatform.user", f"user:{who}") for who, at in places)
        tokens = (Token(digest_of(email), email, 0) for email in emails)
        authority.replace(AccessBook({token.digest: token for token in tokens}, policy))

        def submit() -> None:
            principal = authority.authenticate(f"Bearer {emails[3]}")
            authorize(principal, "google.cloud.aiplatform.v1.JobService.CreateCustomJob", ("p3",))

        return submit

    counts, submit_of_many = list[int](), submits(10_000, 1_000)
    for submit in (submits(10, 10), submit_of_many):
        submit()
        gc.collect()  # Libraries have callbacks in each collection, so none must be due now.
        events: list[str] = []
        sys.setprofile(lambda _, event, __, events=events: events.append(event))
        submit()
        sys.setprofile(None)
        counts.append(len(events))
    assert counts[0] == counts[1] > 10
    # A search through a list makes no counted calls, but takes time.
    took = min(timeit.repeat(submit_of_many, number=20, repeat=50, timer=time.process_time))
    assert took / 20 < 60e-6, "CPU seconds per submit"
