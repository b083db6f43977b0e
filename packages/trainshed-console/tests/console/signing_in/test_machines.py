"""ID tokens of machines, and the settings of issuers (docs/team.md)."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.console.browser import Browser, ConsoleService, text_of
from tests.console.signing_in.conftest import (
    ANA,
    JOBS,
    NOW,
    WHOAMI,
    exchange_token,
    expect_rejection,
    sign_in_with_issuer,
)
from tests.console.test_sessions import JOB
from tests.issuer import ScriptedIssuer
from trainshed.access.job_tokens import JobClaims
from trainshed.serve.setting_types import IssuerTables, convert

ROBOT = "nightly@p1.iam.gserviceaccount.com"
MAIN = "repo:corp/vision:ref:refs/heads/main"
_MACHINES = {
    "github": {"sub": MAIN, "repository": "corp/vision", "event_name": "push"},
    "gitlab": {"sub": "project_path:corp/vision:ref_type:tag:ref:v1.2", "user_email": ANA},
    "kubernetes": {"sub": "system:serviceaccount:ml:trainer", "aud": ["https://ci.example"]},
}
_ACCOUNTS = {
    MAIN: ROBOT,
    "repo:corp/vision:ref:refs/tags/*": ROBOT,
    "project_path:corp/vision:*": ROBOT,
    "system:serviceaccount:ml:trainer": ROBOT,
    # The longest matching pattern decides.
    "repo:corp/*": "nobody@p1.iam.gserviceaccount.com",
}


@pytest.fixture
async def machine_house(
    tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[ConsoleService]:
    """A service with an issuer that only signs tokens of machines."""
    published = {"issuer": issuer.address, "jwks_uri": f"{issuer.address}/keys"}
    monkeypatch.setattr(issuer, "metadata", lambda: published)
    audience = "https://ci.example"
    issuer.claims = {"aud": audience}
    table = issuer.settings(client_id=None, audiences=(audience,), accounts=_ACCOUNTS)
    service = ConsoleService(tmp_path, issuers=[table])
    await service.result("POST", "/v1/projects/p1/serviceAccounts", {"accountId": "nightly"})
    member, role = f"serviceAccount:{ROBOT}", "roles/aiplatform.user"
    grant = {"role": role, "project": "p1", "member": member}
    await service.result("POST", "/trainshed/v1/access:change", grant)
    yield service
    service.close()


@pytest.mark.parametrize("claims", _MACHINES.values(), ids=_MACHINES)
async def test_machine_id_token_acts_as_its_service_account(
    machine_house: ConsoleService, issuer: ScriptedIssuer, claims: dict[str, Any]
) -> None:
    """The claims are those that GitHub Actions, GitLab and Kubernetes document. The audit log contains the
    subject."""
    token = issuer.id_token(now=NOW, **claims)
    assert (await exchange_token(machine_house, token)).json["access_token"] == token
    assert (await machine_house.call("POST", JOBS, JOB, token=token)).status == 200
    [row] = (await machine_house.result("GET", "/trainshed/v1/audit?project=p1"))["entries"][:1]
    assert (row["who"], row["actingAs"]) == (claims["sub"], ROBOT)
    browser, known = Browser(machine_house), machine_house.tokens.issuers
    await browser.sign_in(token=token)
    for marks, status in (([f"{issuer.address}#"], 303), (known, 200)):
        machine_house.tokens.issuers = marks
        assert (await browser.get("/team")).status == status, (
            "the token is invalid without its settings entry"
        )
    account = f"/v1/projects/p1/serviceAccounts/{ROBOT}"
    await machine_house.call("POST", f"{account}:disable", {})
    await expect_rejection(machine_house, token, "is disabled")
    await machine_house.call("POST", f"{account}:enable", {})
    assert (await machine_house.call("GET", WHOAMI, token=token)).json["email"] == ROBOT
    program, _ = machine_house.jobs.mint(JobClaims(1, 1, "workerpool0-0", "p1", ROBOT))
    path = f"/trainshed/v1/tokens/{ROBOT}"
    assert (await machine_house.call("DELETE", path, token=program)).status == 404
    await machine_house.result("DELETE", path)
    await expect_rejection(machine_house, token, "were revoked after this token")
    await machine_house.call("DELETE", account)
    machine_house.clock += 61 * 10**9
    await expect_rejection(machine_house, issuer.id_token(now=NOW + 61, **claims), "was deleted")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"sub": "repo:corp/vision:pull_request"}, "nobody@p1.iam.gserviceaccount.com was deleted"),
        ({"sub": "repo:evil/vision:ref:refs/heads/main"}, "no service account for the subject"),
        ({"sub": "repo:corp-evil/vision:ref:refs/heads/main"}, "no service account for the subject"),
        ({"sub": "project_path:corp/vision-evil:ref:v1"}, "no service account for the subject"),
        ({"sub": f"{MAIN}2"}, "nobody@p1.iam.gserviceaccount.com was deleted"),
        ({"sub": ""}, "no service account for the subject"),
        ({"sub": None}, "not valid"),
        ({"sub": [MAIN]}, "not valid"),
        ({"sub": MAIN, "aud": "https://other.example"}, "not a client of this service"),
        ({"sub": MAIN, "aud": []}, "not valid"),
        ({"sub": "7", "email": ROBOT, "email_verified": True}, "not an address of a user"),
    ],
)
async def test_machine_token_of_another_subject_is_rejected(
    machine_house: ConsoleService, issuer: ScriptedIssuer, claims: dict[str, Any], why: str
) -> None:
    await expect_rejection(machine_house, issuer.id_token(now=NOW, **claims), why)


async def test_machine_issuer_cannot_sign_in_a_browser(
    machine_house: ConsoleService, tmp_path: Path, issuer: ScriptedIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = Browser(machine_house)
    assert "Corp" not in text_of(await stranger.get("/login"))
    assert "no such issuer" in text_of(await stranger.get("/login/with?issuer=Corp"))
    monkeypatch.undo()
    issuer.claims = {"email": ANA, "email_verified": True}
    table = issuer.settings(accounts={"7": ROBOT})
    service = ConsoleService(tmp_path / "other", issuers=[table])
    browser = Browser(service)
    await sign_in_with_issuer(browser, issuer)
    assert ANA in text_of(await browser.get("/team"))
    service.close()


def test_issuer_settings_error_lists_all_faults() -> None:
    good: dict[str, Any] = {"name": "Corp", "issuer": "https://sso.corp.example", "client_id": "x"}
    assert convert("oidc", IssuerTables, [good])[0].groups_claim == "groups"
    bad = [
        {**good, "issuer": "http://sso.corp.example", "name": "", "domains": ["Corp"]},
        {**good, "more": 1},
        {"name": "CI", "issuer": "https://ci.example"},
    ]
    for subject in ("", "*", "repo:*", "repo:corp*", "repo:corp/x:*:main", "repo:/*"):
        bad.append({**good, "accounts": {subject: ROBOT}})
    bad.append({**good, "accounts": {"repo:corp/x:*": ANA}})
    with pytest.raises(ValueError, match="oidc") as wrong:
        convert("oidc", IssuerTables, [*bad, good, good])
    faults = str(wrong.value)
    words = ("oidc[0].name", "oidc[0].issuer", "oidc[0].domains", "oidc[1]", "oidc[2].client_id")
    for word in (*words, "two tables", *(f"oidc[{number}].accounts: " for number in range(3, 10))):
        assert word in faults
