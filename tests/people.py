"""Users and tokens of a test's service, and the file from which its bucket process reads them."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from trainshed.access.book import AccessBook, AccessFile, Token, documents
from trainshed.access.job_tokens import JobTokens
from trainshed.access.permissions import OWNER
from trainshed.access.policy import GROUP, Grant
from trainshed.access.principals import member_of
from trainshed.access.tokens import TokenAuthority, digest_of, new_token

TOKEN = "the-owner-of-all-tests".ljust(43, "0")
"""Return a token in the form of the service's tokens."""


def create_authority(now: Callable[[], int], jobs: JobTokens | None = None) -> tuple[TokenAuthority, str]:
    """Return an authority with an owner, and the owner's token."""
    return TokenAuthority(AccessBook(), digest_of(TOKEN), now, jobs), TOKEN


def add_user(
    authority: TokenAuthority, email: str, role: str = OWNER, project: str = "", group: str = ""
) -> str:
    """Grant a role to a user or their group, in one project or all. Return a token of the user."""
    token, book = new_token(), authority.book
    member = GROUP + group if group else member_of(email)
    made = Token(digest_of(token), email, 0, groups=(group,) if group else ())
    granted = {*book.policy.of_project(project), Grant(project, role, member)}
    authority.replace(book.with_token(made).with_grants(project, granted))
    return token


def write(path: Path, authority: TokenAuthority, owner: str) -> None:
    """Write the file that a bucket process reads. `owner`: the owner's token."""
    file = AccessFile.of(digest_of(owner), documents(authority.book))
    path.write_bytes(msgspec.json.encode(file))
