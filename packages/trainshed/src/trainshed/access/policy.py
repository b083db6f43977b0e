"""A policy says which members have which roles, in a project or in the whole service. Pure.

Members are written as in the public API: `user:EMAIL`, `serviceAccount:EMAIL`, `group:NAME`. Who is in a
group is said by the issuer by which somebody signs in.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr

from trainshed.access.permissions import ROLES
from trainshed.access.principals import SERVICE_ACCOUNT, USER, Rights, member_of
from trainshed.core.names import normalize_email

GROUP: Final = "group:"
_EMAIL: Final = re.compile(r"[^\s@:/,\"'<>]{1,64}@[A-Za-z0-9.-]{1,255}")
_GROUP: Final = re.compile(r"[^\s,\"'<>]{1,200}")


class Grant(Struct, frozen=True, order=True):
    """One member has one role."""

    #: The project's id; "" = all projects, and the service itself.
    project: str
    role: str
    member: str

    def __post_init__(self) -> None:
        if (member := normalize_member(self.member)) != self.member:
            force_setattr(self, "member", member)


class Policy:
    """All grants of a service. Immutable; rights are computed once for each member."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self.grants = frozenset(grants)
        self._by_project = _sets(self.grants, lambda grant: grant.project)
        self._by_member = _sets(self.grants, lambda grant: grant.member)
        self._rights: dict[tuple[str, tuple[str, ...]], Rights] = {}

    def with_project(self, project: str, grants: Iterable[Grant]) -> "Policy":
        """With these grants of a project in place of its former ones."""
        return Policy((self.grants - self.of_project(project)).union(grants))

    def rights(self, email: str, groups: tuple[str, ...] = ()) -> Rights:
        """What somebody in these groups may do; nothing for somebody whom nobody gave a role."""
        rights = self._rights.get((email, groups))
        if rights is None:
            rights = rights_of(self.grants_of(email, groups))
            self._rights[email, groups] = rights
        return rights

    def grants_of(self, email: str, groups: tuple[str, ...]) -> tuple[Grant, ...]:
        """The grants of somebody and of these groups."""
        members = (member_of(email), *(GROUP + group for group in groups))
        return tuple(
            grant for member in members for grant in sorted(self._by_member.get(member, ()))
        )

    def named(self, groups: Iterable[str]) -> tuple[str, ...]:
        """Those of the groups that have a role somewhere."""
        return tuple(group for group in groups if self._by_member.get(GROUP + group))

    def of_project(self, project: str) -> frozenset[Grant]:
        """The grants of a project; those of the whole service for ""."""
        return self._by_project.get(project, frozenset())

    def projects(self) -> frozenset[str]:
        """Every project in which somebody has a role."""
        return frozenset(self._by_project) - {""}


def normalize_member(member: str) -> str:
    """Return a member as it is stored and compared. Names of groups are case-sensitive."""
    kind, _, email = member.partition(":")
    is_address = f"{kind}:" in (USER, SERVICE_ACCOUNT)
    return f"{kind}:{normalize_email(email)}" if is_address else member


def _sets(grants: Iterable[Grant], of: Callable[[Grant], str]) -> dict[str, frozenset[Grant]]:
    sets: dict[str, set[Grant]] = {}
    for grant in grants:
        sets.setdefault(of(grant), set()).add(grant)
    return {key: frozenset(members) for key, members in sets.items()}


def rights_of(grants: Iterable[Grant]) -> Rights:
    """Return what grants let somebody do who has them all."""
    everywhere: frozenset[str] = frozenset()
    projects: dict[str, frozenset[str]] = {}
    for grant in grants:
        permissions = ROLES.get(grant.role, frozenset())
        if grant.project:
            projects[grant.project] = projects.get(grant.project, frozenset()) | permissions
        else:
            everywhere |= permissions
    return Rights(everywhere, projects)


def home_of(account: str) -> str:
    """Return the project, by id or number, to which a service account belongs by its address; "" if that does
    not say it."""
    name, _, domain = account.partition("@")
    if domain in ("developer.gserviceaccount.com", "gcp-sa-aiplatform-cc.iam.gserviceaccount.com"):
        return name.removeprefix("service-").removesuffix("-compute")
    home = domain.removesuffix(".iam.gserviceaccount.com")
    return home if home != domain else ""


def member_fault(member: str) -> str | None:
    """Return what is wrong with a member of a policy; None if nothing is."""
    kind, _, email = member.partition(":")
    if f"{kind}:" == GROUP:
        is_name = _GROUP.fullmatch(email) and email.isprintable()
        return None if is_name else f"{email!r} is no name of a group."
    if f"{kind}:" not in (USER, SERVICE_ACCOUNT):
        return (
            f"{member!r} is none of user:EMAIL, serviceAccount:EMAIL and group:NAME; no other members have "
            "roles here."
        )
    if not (_EMAIL.fullmatch(email) and email.isprintable()):
        return f"{email!r} is not an e-mail address."
    if normalize_member(member) != member_of(email):
        return f"{email!r} has the address of another kind of member: write {member_of(email)}."
    return None


def role_fault(role: str) -> str | None:
    """Return what is wrong with a role in a policy; None if nothing is."""
    if role in ROLES:
        return None
    wanted = next(
        (name for name in (f"roles/{role}", f"roles/aiplatform.{role}") if name in ROLES), None
    )
    if wanted:
        return f"{role!r} is not a role. Did you mean {wanted!r}?"
    return f"{role!r} is not a role. The roles are: {', '.join(ROLES)}."


def bindings_of(grants: Iterable[Grant]) -> Mapping[str, tuple[str, ...]]:
    """Return the members of each role, both in order, as public policies list them."""
    members: dict[str, list[str]] = {}
    for grant in sorted(grants):
        members.setdefault(grant.role, []).append(grant.member)
    return {role: tuple(names) for role, names in members.items()}
