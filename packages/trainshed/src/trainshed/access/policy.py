"""A policy assigns roles to members, in a project or in the whole service. Pure.

Members have the form of the public API: `user:EMAIL`, `serviceAccount:EMAIL`, `group:NAME`. A user's groups
come from the issuer of the sign-in.
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
    """A role of a member in a project or in the whole service."""

    #: The project's ID; "" = all projects and the service itself.
    project: str
    role: str
    member: str

    def __post_init__(self) -> None:
        if (member := normalize_member(self.member)) != self.member:
            force_setattr(self, "member", member)


class Policy:
    """All grants of a service. Immutable. The rights of a member are computed once."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self.grants = frozenset(grants)
        self._by_project = _sets(self.grants, lambda grant: grant.project)
        self._by_member = _sets(self.grants, lambda grant: grant.member)
        self._rights: dict[tuple[str, tuple[str, ...]], Rights] = {}

    def with_project(self, project: str, grants: Iterable[Grant]) -> "Policy":
        """Return the policy with these grants in place of a project's grants."""
        return Policy((self.grants - self.of_project(project)).union(grants))

    def rights(self, email: str, groups: tuple[str, ...] = ()) -> Rights:
        """Return the rights of a user in these groups. They are empty if neither the user nor a group has a
        role."""
        rights = self._rights.get((email, groups))
        if rights is None:
            rights = rights_of(self.grants_of(email, groups))
            self._rights[email, groups] = rights
        return rights

    def grants_of(self, email: str, groups: tuple[str, ...]) -> tuple[Grant, ...]:
        """Return the grants of a user and of these groups."""
        members = (member_of(email), *(GROUP + group for group in groups))
        return tuple(grant for member in members for grant in sorted(self._by_member.get(member, ())))

    def groups_with_roles(self, groups: Iterable[str]) -> tuple[str, ...]:
        """Return those of the groups that have a role in a project or in the service."""
        return tuple(group for group in groups if self._by_member.get(GROUP + group))

    def of_project(self, project: str) -> frozenset[Grant]:
        """Return the grants in a project, or in the whole service for ""."""
        return self._by_project.get(project, frozenset())

    def projects(self) -> frozenset[str]:
        """Return the IDs of all projects with grants."""
        return frozenset(self._by_project) - {""}


def normalize_member(member: str) -> str:
    """Return the canonical form of a member, for storage and comparison. Group names are case-sensitive."""
    kind, _, email = member.partition(":")
    is_address = f"{kind}:" in (USER, SERVICE_ACCOUNT)
    return f"{kind}:{normalize_email(email)}" if is_address else member


def _sets(grants: Iterable[Grant], of: Callable[[Grant], str]) -> dict[str, frozenset[Grant]]:
    sets: dict[str, set[Grant]] = {}
    for grant in grants:
        sets.setdefault(of(grant), set()).add(grant)
    return {key: frozenset(members) for key, members in sets.items()}


def rights_of(grants: Iterable[Grant]) -> Rights:
    """Return the combined rights of these grants."""
    everywhere: frozenset[str] = frozenset()
    projects: dict[str, frozenset[str]] = {}
    for grant in grants:
        permissions = ROLES.get(grant.role, frozenset())
        if grant.project:
            projects[grant.project] = projects.get(grant.project, frozenset()) | permissions
        else:
            everywhere |= permissions
    return Rights(everywhere, projects)


def project_of_account(account: str) -> str:
    """Return the project ID or number in the address of a service account; "" if it contains none."""
    name, _, domain = account.partition("@")
    if domain in ("developer.gserviceaccount.com", "gcp-sa-aiplatform-cc.iam.gserviceaccount.com"):
        return name.removeprefix("service-").removesuffix("-compute")
    home = domain.removesuffix(".iam.gserviceaccount.com")
    return home if home != domain else ""


def member_fault(member: str) -> str | None:
    """Return the error of an invalid member of a policy, or None if the member is valid."""
    kind, _, email = member.partition(":")
    if f"{kind}:" == GROUP:
        is_name = _GROUP.fullmatch(email) and email.isprintable()
        return None if is_name else f"{email!r} is not a name of a group."
    if f"{kind}:" not in (USER, SERVICE_ACCOUNT):
        return (
            f"{member!r} is none of user:EMAIL, serviceAccount:EMAIL and group:NAME. Other kinds of members "
            "cannot have roles."
        )
    if not (_EMAIL.fullmatch(email) and email.isprintable()):
        return f"{email!r} is not an e-mail address."
    if normalize_member(member) != member_of(email):
        return f"{email!r} has the address of another kind of member: write {member_of(email)}."
    return None


def role_fault(role: str) -> str | None:
    """Return the error of an invalid role of a policy, or None if the role is valid."""
    if role in ROLES:
        return None
    wanted = next((name for name in (f"roles/{role}", f"roles/aiplatform.{role}") if name in ROLES), None)
    if wanted:
        return f"{role!r} is not a role. Did you mean {wanted!r}?"
    return f"{role!r} is not a role. The roles are: {', '.join(ROLES)}."


def bindings_of(grants: Iterable[Grant]) -> Mapping[str, tuple[str, ...]]:
    """Return the members of each role, as public policies list them. Roles and members are sorted."""
    members: dict[str, list[str]] = {}
    for grant in sorted(grants):
        members.setdefault(grant.role, []).append(grant.member)
    return {role: tuple(names) for role, names in members.items()}
