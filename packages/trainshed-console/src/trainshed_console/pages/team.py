"""The pages for teams: the visitor's identity, roles, tokens and usage, and the audit log."""

from typing import Final

from trainshed.access.permissions import ROLES
from trainshed.httpd.messages import Response
from trainshed.wire.trainshed_v1.access import AuditPage, GrantList, Identity, IssuedToken, TokenList
from trainshed.wire.trainshed_v1.capacity import UsageReport
from trainshed_console.views import View, Visit, redirect

_ALL: Final = "-"
_WAYS: Final = (("user", "By user"), ("project", "By project"), ("machine", "By machine"))


async def page(visit: Visit, made: IssuedToken | None = None) -> View:
    """`/team[?project=P]`: the visitor's roles. Visitors with permission also see all roles and tokens.
    `made`: a new token to show once."""
    values = {
        "me": await visit.get(Identity, "whoami"),
        "grants": await visit.get_if_allowed(GrantList, "access", project=visit.project),
        "tokens": await visit.get_if_allowed(TokenList, "tokens"),
        "made": made,
        "roles": tuple(ROLES),
        "usage": await visit.get_if_allowed(
            UsageReport, "usage", project=visit.project, by=_usage_grouping(visit)
        ),
        "by": _usage_grouping(visit),
        "ways": _WAYS,
    }
    return View("Team", "team.html", values, place="team")


async def grant_role(visit: Visit) -> Response:
    """`POST /team/roles`: grant a role. Raises CallRejected."""
    return await _change(visit, remove=False)


async def revoke_role(visit: Visit) -> Response:
    """`POST /team/roles/remove`: revoke a role. Raises CallRejected."""
    return await _change(visit, remove=True)


async def create_token(visit: Visit) -> View:
    """`POST /team/tokens`: create a token, and show it once. Raises CallRejected."""
    days = visit.form.get("days", "")
    body = {name: visit.form.get(name, "") for name in ("email", "note")}
    made = await visit.do("POST", "tokens", {**body, "days": float(days) if days.isdecimal() else 0})
    assert isinstance(made, IssuedToken), "the answer is a token"
    return await page(visit, made)


async def delete_token(visit: Visit) -> Response:
    """`POST /team/tokens/T/delete`: revoke a token. Raises CallRejected."""
    await visit.do("DELETE", f"tokens/{visit.encode_variable('token')}")
    return redirect("/team")


async def audit(visit: Visit) -> View:
    """`/team/audit[?project=P&page=T]`: the audit log, newest first. Raises CallRejected."""
    page = await visit.get(AuditPage, "audit", project=visit.project, pageToken=visit.query("page"))
    following = visit.next_page(page.next_page_token)
    return View("Audit", "audit.html", {"page": page, "following": following}, place="team")


def _usage_grouping(visit: Visit) -> str:
    by = visit.query("by")
    return by if by in dict(_WAYS) else "user"


async def _change(visit: Visit, *, remove: bool) -> Response:
    fields = {name: visit.form.get(name, "").strip() for name in ("member", "role", "project")}
    if "@" in fields["member"] and ":" not in fields["member"]:
        kind = "serviceAccount" if fields["member"].endswith(".gserviceaccount.com") else "user"
        fields["member"] = f"{kind}:{fields['member']}"
    await visit.do("POST", "access:change", {**fields, "remove": remove})
    return redirect("/team" if fields["project"] in ("", _ALL) else f"/team?project={fields['project']}")
