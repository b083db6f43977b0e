"""People whom a test's service knows, and the file by which its bucket process knows them."""

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
"""In the form that the service's own have."""


def owned(now: Callable[[], int], jobs: JobTokens | None = None) -> tuple[TokenAuthority, str]:
    """Return an authority that knows an owner, and the owner's token."""
    return TokenAuthority(AccessBook(), digest_of(TOKEN), now, jobs), TOKEN


def known(
    authority: TokenAuthority, email: str, role: str = OWNER, project: str = "", group: str = ""
) -> str:
    """Give somebody, or a group of theirs, a role, in all projects unless one is named, and return a token of
    theirs."""
    token, book = new_token(), authority.book
    member = GROUP + group if group else member_of(email)
    made = Token(digest_of(token), email, 0, groups=(group,) if group else ())
    granted = {*book.policy.of_project(project), Grant(project, role, member)}
    authority.replace(book.with_token(made).with_grants(project, granted))
    return token


def write(path: Path, authority: TokenAuthority, owner: str) -> None:
    """Write what a bucket process reads. `owner`: the owner's token."""
    file = AccessFile.of(digest_of(owner), documents(authority.book))
    path.write_bytes(msgspec.json.encode(file))
