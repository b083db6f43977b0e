"""Tokens of users: creation, immediate effect, immediate revocation, also for running requests. The audit
log."""

import asyncio
import json
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tests.contract.api.api_service import HOSTS, LOCATION, START, ApiService
from tests.contract.api.fake_shells import ApiServiceWithShells
from tests.contract.api.violations import violations
from tests.people import add_user
from tests.unit.specs_requests import custom_job, package
from trainshed.access import authentication_limits
from trainshed.access.account_tokens import GRANT
from trainshed.access.book import FILE, AccessBook
from trainshed.access.job_tokens import JobClaims
from trainshed.access.tokens import digest_of
from trainshed.api.calls.audit import record_failed_authentication
from trainshed.api.trainshed_v1 import access
from trainshed.buckets.authentication import TokenFile
from trainshed.core.errors import Unauthenticated, Unavailable
from trainshed.core.names import JobUid, project_number
from trainshed.store.audit import chain_hash

SERVICE_CLASS = ApiServiceWithShells
API_PATH = "/trainshed/v1"
JOBS = f"{LOCATION}/customJobs"
ANA = "ana@corp.example"
_SECOND = 1 / 24 / 3600
"""A day's part."""


async def token_of(service: ApiService, email: str = ANA, **fields: Any) -> dict[str, Any]:
    body = {"email": email, "role": "roles/aiplatform.user", "project": "p1", **fields}
    return await service.result("POST", f"{API_PATH}/tokens", body)


async def audit(service: ApiService, query: str = "?project=-") -> list[dict[str, Any]]:
    """Return the audit log, oldest entry first."""
    return (await service.result("GET", f"{API_PATH}/audit{query}"))["entries"][::-1]


async def test_token_is_returned_once_and_has_its_users_roles(service: ApiServiceWithShells) -> None:
    made = await token_of(service, note="laptop", days=1)
    assert (await service.call("GET", JOBS, token=made["token"])).status == 200
    assert (await service.call("GET", JOBS.replace("p1", "p2"), token=made["token"])).status == 403
    [listed] = (await service.result("GET", f"{API_PATH}/tokens"))["tokens"]
    assert listed["note"] == "laptop" and "token" not in listed
    assert made["token"] not in json.dumps(await audit(service))
    with patch.object(service.store.access, "note_uses", side_effect=Unavailable("the disk is full")):
        await service.keeper.flush()
    await service.keeper.flush()
    assert service.store.access.load()[1] == service.keeper.uses, "when each was used last"
    service.clock += 24 * 3600 * 10**9
    assert (await service.call("GET", JOBS, token=made["token"])).status == 401


@pytest.mark.parametrize("version", ["v1", "v3"])
async def test_deleted_project_loses_its_roles_and_accounts(
    service: ApiServiceWithShells, version: str
) -> None:
    made = await token_of(service, project="vision")
    project, jobs = f"/{version}/projects/vision", JOBS.replace("p1", "vision")
    assert (await service.call("POST", jobs, custom_job(), token=made["token"])).status == 200
    accounts = "/v1/projects/vision/serviceAccounts"
    assert (await service.call("POST", accounts, {"accountId": "nightly"})).status == 200
    assert (await service.call("DELETE", project, token=made["token"])).status == 403
    assert (await service.call("DELETE", project)).status == 200
    assert (await service.call("GET", jobs, token=made["token"])).status == 403
    assert not service.tokens.book.accounts
    assert (await service.call("GET", jobs)).json["customJobs"], "what it holds stays"
    refused, deletion = [row for row in await audit(service) if "DeleteProject" in row["method"]]
    assert (refused["who"], refused["project"]) == (ANA, "vision")
    assert [row["answer"] for row in (refused, deletion)] == ["PERMISSION_DENIED", "OK"]
    assert deletion["detail"] == {"removed": [f"roles/aiplatform.user user:{ANA}"]}
    assert (await service.call("DELETE", project)).status == 404
    grant = {"role": "roles/viewer", "member": f"user:{ANA}", "project": "vision"}
    for path, body in (("/v1/projects", {"projectId": "vision"}), (f"{API_PATH}/access:change", grant)):
        refused = await service.call("POST", path, body)
        assert "was deleted and its contents are kept" in refused.error["message"]
    undelete = "/v1/projects/vision:undelete"
    assert (await service.call("POST", undelete, {})).json == {}
    assert (await service.call("POST", undelete, {})).status == 404
    assert (await token_of(service, project="vision"))["token"]


async def test_users_list_and_delete_only_their_own_tokens(service: ApiServiceWithShells) -> None:
    """Addresses are compared without case."""
    first, second = await token_of(service), await token_of(service, role="")
    former = (await token_of(service, ANA.title()))["token"]
    other = await token_of(service, email="bo@corp.example")
    mine = (await service.result("GET", f"{API_PATH}/tokens", token=first["token"]))["tokens"]
    assert {token["id"] for token in mine} == {first["id"], second["id"], digest_of(former)[:12]}
    by_program = await service.call("GET", f"{API_PATH}/tokens", token="of-a-program")
    assert by_program.json == {"tokens": []}
    for target in (other["id"], "bo@corp.example", "nobody@corp.example"):
        refused = await service.call("DELETE", f"{API_PATH}/tokens/{target}", token=first["token"])
        assert refused.error["message"].startswith(f"The token {target!r} does not exist, or you may")
    await service.result("DELETE", f"{API_PATH}/tokens/{second['id']}", token=first["token"])
    path = f"{API_PATH}/tokens/{ANA.upper()}"
    assert (await service.call("DELETE", path, token=first["token"])).status == 200
    for token, status in ((first["token"], 401), (former, 401), (other["token"], 200)):
        assert (await service.call("GET", JOBS, token=token)).status == status
    assert (await service.call("DELETE", f"{API_PATH}/tokens/{ANA}")).status == 404


async def test_expired_tokens_do_not_count_against_the_limit(
    service: ApiServiceWithShells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "_MAX_TOKENS", 1)
    await token_of(service, days=_SECOND)
    assert (await service.call("POST", f"{API_PATH}/tokens", {"email": ANA})).status == 400
    service.clock += 10**9
    digest = digest_of((await token_of(service))["token"])
    assert [*service.tokens.book.tokens] == [digest]


async def test_deleted_token_becomes_invalid_for_buckets_when_a_full_disk_has_space_again(
    service: ApiServiceWithShells, tmp_path: Path
) -> None:
    made, buckets = (await token_of(service), TokenFile(tmp_path / FILE, service.jobs, service.now, HOSTS))
    shown = partial(buckets.authenticate, f"Bearer {made['token']}")
    (full := tmp_path / f"{FILE}.new").mkdir()
    assert (await service.call("DELETE", f"{API_PATH}/tokens/{made['id']}")).status == 503
    assert (await shown()).email == ANA
    full.rmdir()
    once = patch("asyncio.sleep", side_effect=[None, asyncio.CancelledError])
    with once, pytest.raises(asyncio.CancelledError):
        await service.keeper.write_uses()
    with pytest.raises(Unauthenticated):
        await shown()


async def test_service_owner_sees_service_wide_grants_in_the_grants_of_a_project(
    service: ApiServiceWithShells,
) -> None:
    """The owner may also have a role in that project."""
    add_user(service.tokens, ANA, project="p1")
    ana = add_user(service.tokens, ANA)
    listed = await service.result("GET", f"{API_PATH}/access?project=p1", token=ana)
    assert [grant["project"] for grant in listed["grants"]] == ["-", "p1"]


async def test_every_fault_of_an_access_request_is_reported(service: ApiServiceWithShells) -> None:
    body = {"email": "nobody", "role": "roles/king", "days": -1, "note": "a\nb", "more": 1}
    query = {"project": "p1"}
    assert violations(await service.call("POST", f"{API_PATH}/tokens", body | query)).keys() == set(body)


async def test_log_streams_opened_with_the_token_of_a_program_end_with_its_job(
    service: ApiServiceWithShells,
) -> None:
    """This applies to any client with the program's token, in any place."""
    await service.run((await service.result("POST", JOBS, custom_job()))["name"])
    service.write_log(1000, "workerpool0-0", (START, "first"))
    token, _ = service.jobs.mint(JobClaims(7, 1, "workerpool0-0", "p1", "job@p1.example"))
    over: list[bool] = []
    service.tokens.refuse(lambda _: bool(over))
    async with service.stream(f"{API_PATH}/jobs/1000/logs?follow=true", token) as followed:
        assert "first" in str(await followed.next())
        over.append(True)
        service.notices.publish(JobUid(7))
        assert await followed.next() is None


@pytest.mark.parametrize("how", ["token", "role", "expiry"])
async def test_log_stream_ends_when_its_permission_is_revoked(
    service: ApiServiceWithShells, how: str
) -> None:
    """The stream ends even if the job belongs to the same user."""
    made = await token_of(service, days=_SECOND if how == "expiry" else 0)
    name = (await service.result("POST", JOBS, custom_job(), token=made["token"]))["name"]
    await service.run(name)
    service.write_log(1000, "workerpool0-0", (START, "first"))
    path = f"{API_PATH}/jobs/1000/logs?follow=true"
    async with service.stream(path, made["token"]) as followed, service.stream(path) as others:
        assert "first" in str(await followed.next()) and "first" in str(await others.next())
        if how == "token":
            await service.call("DELETE", f"{API_PATH}/tokens/{made['id']}")
        elif how == "expiry":
            service.clock += 10**9
        else:
            grant = {"role": "roles/aiplatform.user", "member": f"user:{ANA}", "project": "p1"}
            await service.call("POST", f"{API_PATH}/access:change", {**grant, "remove": True})
        assert await followed.next() is None
        service.write_log(1000, "workerpool0-0", (START + 1, "second"))
        assert "second" in str(await others.next())


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("access:change", {"role": "roles/aiplatform.viewer", "member": f"user:{ANA}"}),
        ("quotas:set", {"metric": "jobs", "limit": 1}),
    ],
)
async def test_change_in_all_projects_requires_permission_in_each_project(
    service: ApiServiceWithShells, path: str, change: dict[str, Any]
) -> None:
    """The change must not silently apply only to the caller's only project."""
    owner = add_user(service.tokens, "bo@corp.example", "roles/owner", "p1")
    answer = await service.call("POST", f"{API_PATH}/{path}", {**change, "project": "-"}, token=owner)
    assert answer.status == 403
    assert (await service.call("POST", f"{API_PATH}/{path}", change, token=owner)).status == 200


async def test_audit_records_each_change_with_user_and_details(service: ApiServiceWithShells) -> None:
    """The audit log includes changes of job secrets, quotas, shells and roles. Reads and malformed requests
    are not recorded."""
    made = await token_of(service)
    secret = {"name": "key", "value": "c2VjcmV0", "project": "p1"}
    await service.call("POST", f"{API_PATH}/secrets", secret)
    job = custom_job(package(env=[{"name": "KEY", "value": "$(secret:key)"}]))
    name = (await service.result("POST", JOBS, job, token=made["token"]))["name"]
    await service.run(name)
    await service.call("GET", f"/v1/{name}", token=made["token"])
    await service.call("POST", JOBS, {}, token=made["token"])
    await service.call("POST", f"{API_PATH}/jobs/1000:shell", {}, token=made["token"])
    await service.call("POST", f"/v1/{name}:cancel", {}, token=made["token"])
    quota = {"metric": "cpus_n1_e2", "limit": 8, "project": "p1"}
    await service.call("POST", f"{API_PATH}/quotas:set", {**quota, "region": "us-central1"})
    changes = [
        (row["who"], row["method"].rpartition(".")[2], row["resource"]) for row in await audit(service)
    ]
    owner = "owner@trainshed.local"
    assert changes == [
        (owner, "Create", ANA),
        (owner, "Set", "key"),
        (ANA, "CreateCustomJob", name),
        (ANA, "Shell", name),
        (ANA, "CancelCustomJob", name),
        (owner, "Set", "quota of cpus_n1_e2 in us-central1"),
    ]
    rows = await audit(service, "?project=p1")
    assert [(row["resource"], row["detail"]) for row in rows][2:3] == [
        (name, {"name": job["displayName"], "secrets": "key"})
    ]
    assert rows[-1]["detail"] == {"before": "unlimited", "after": 8.0}
    assert "c2VjcmV0" not in json.dumps(rows)


@pytest.mark.parametrize("project", ["p1", str(project_number("p1"))])
async def test_denied_changes_are_audited_up_to_a_limit(service: ApiServiceWithShells, project: str) -> None:
    """The entry is in the project's audit log for each form of the project's name. Denied reads are not
    recorded."""
    await token_of(service)
    bo = (await token_of(service, "bo@corp.example", project="p2"))["token"]
    jobs, long = JOBS.replace("p1", project), "n" * 9000
    for method, path, body in (
        ("POST", jobs, custom_job()),
        ("DELETE", f"{jobs}/{long}", None),
        ("PUT", f"/v1/projects/{project}", {"name": "mine"}),
        ("POST", f"{API_PATH}/secrets", {"name": "key", "value": "c2VjcmV0", "project": project}),
        ("GET", jobs, None),
    ):
        assert (await service.call(method, path, body, token=bo)).status == 403
    _, *rows = await audit(service, "?project=p1")  # The first one is the token.
    assert [row["method"].rpartition(".")[2] for row in rows] == [
        *("CreateCustomJob", "DeleteCustomJob", "UpdateProject", "Set")
    ]
    assert {(row["who"], row["answer"]) for row in rows} == {("bo@corp.example", "PERMISSION_DENIED")}
    assert max(len(audit_content(service, row["seq"])) for row in rows) <= 368
    for _ in range(60):
        await service.call("POST", jobs, custom_job(), token=bo)
    _, *rows = await audit(service, "?project=p1")
    assert len(rows) == 50 and rows[-1]["detail"] == {"refusals": 50, "seconds": 86400.0}
    assert not rows[-2]["detail"] and "c2VjcmV0" not in json.dumps(rows)


async def test_modified_audit_entry_breaks_the_hash_chain(service: ApiServiceWithShells) -> None:
    """An auditor with the last hash can detect the change."""
    for number in range(3):
        await token_of(service, f"person{number}@corp.example")
    newest = await audit(service)
    page = await audit(service, f"?project=-&pageToken={newest[-1]['seq']}")
    assert [row["seq"] for row in page] == [row["seq"] for row in newest[:-1]]
    rows = (await service.store.access.audit_rows(None, None, 10))[::-1]
    before = b""
    for row in rows:
        content = audit_content(service, row.seq)
        assert row.hash == chain_hash(before, row.at, row.project, content)
        assert row.hash != chain_hash(before, row.at, row.project, content.replace(b"person", b"people"))
        assert len(content) + len(row.hash) <= 400
        before = row.hash
    service.clock += 401 * 24 * 3600 * 10**9
    for _ in range(2):
        await token_of(service)
    _, row = await service.store.access.audit_rows(None, None, 10)
    assert row.hash == chain_hash(before, row.at, "p1", audit_content(service, row.seq)), "400 days later"


@pytest.mark.parametrize(
    ("change", "answers"),
    [
        ("UPDATE audit SET content = CAST(replace(content, 'person1', 'me') AS BLOB)", "OK DATA_LOSS OK"),
        ("UPDATE audit SET content = x'00' WHERE seq = 1", "DATA_LOSS OK OK"),
        ("DELETE FROM audit WHERE seq = 2", "OK DATA_LOSS"),
    ],
)
async def test_modified_or_missing_audit_entries_are_reported(
    service: ApiServiceWithShells, change: str, answers: str
) -> None:
    for number in range(3):
        await token_of(service, f"person{number}@corp.example")
    with open_database(service) as connection:
        connection.execute(change)
    assert " ".join(row["answer"] for row in await audit(service)) == answers


def open_database(service: ApiService) -> sqlite3.Connection:
    [file] = (service.log_root.parent / "data").glob("*.db")
    return sqlite3.connect(file)


def audit_content(service: ApiService, seq: int) -> bytes:
    with open_database(service) as connection:
        return connection.execute("SELECT content FROM audit WHERE seq = ?", (seq,)).fetchone()[0]


async def test_project_number_does_not_reveal_another_projects_id(service: ApiServiceWithShells) -> None:
    await service.call("POST", "/v3/projects", {"project_id": "vision"})
    bo = (await token_of(service, "bo@corp.example", project="p2"))["token"]
    path = f"{API_PATH}/quotas?project={project_number('vision')}"
    refused = await service.call("GET", path, token=bo)
    assert (refused.status, "vision" in refused.error["message"]) == (403, False)


async def test_project_search_is_not_supported(service: ApiServiceWithShells) -> None:
    """Clients would treat the response as complete."""
    answer = await service.call("GET", "/v3/projects:search?query=labels.team:vision")
    assert violations(answer).keys() == {"query"}
    assert len((await service.result("GET", "/v3/projects:search"))["projects"]) == 1


async def test_project_properties_have_a_size_limit(service: ApiServiceWithShells) -> None:
    """Each process that checks access keeps these properties in memory."""
    for texts in ({"name": "n" * 200}, {"labels": {f"k{n}": "v" for n in range(100)}}):
        assert (await service.call("PUT", "/v1/projects/p1", texts)).status == 400


async def test_change_and_its_audit_entry_are_stored_in_the_same_transaction(
    service: ApiServiceWithShells,
) -> None:
    """A change that the store rejects is not recorded."""
    body = {"project_id": "vision"}
    assert (await service.call("POST", "/v3/projects", body)).status == 200
    assert (await service.call("POST", "/v3/projects", body)).status == 409
    resources = [row["resource"] for row in await audit(service)]
    assert resources == ["projects/vision"]


@pytest.mark.parametrize(
    ("verb", "path", "status"), [("POST", JOBS, 401), ("POST", "/token", 400), ("GET", "/healthz", 200)]
)
async def test_brute_force_attack_is_delayed_and_audited_without_delaying_other_users(
    service: ApiServiceWithShells, monkeypatch: pytest.MonkeyPatch, verb: str, path: str, status: int
) -> None:
    monkeypatch.setattr(authentication_limits, "_DELAY_SECONDS", 3600.0)
    form = f"grant_type={GRANT}&assertion=a.b.c".encode() if verb == "POST" else None
    guess = partial(service.call, verb, path, form, token="guessed")
    for _ in range(30):
        assert (await guess()).status == status
    guesses = [asyncio.ensure_future(guess()) for _ in range(2)]
    made = await token_of(service)
    assert (await service.call("GET", JOBS, token=made["token"])).status == 200
    assert not any(waiting.done() for waiting in guesses)
    recorded = {row["method"]: row["source"] for row in await audit(service)}
    assert recorded["trainshed.v1.Tokens.Refused"] == "127.0.0.1"
    for waiting in guesses:
        waiting.cancel()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (JOBS, custom_job(package())),
        ("/trainshed/v1/secrets", {"name": "key", "value": "x"}),
        ("/v1/projects/p1/serviceAccounts", {"accountId": "backdoor"}),
        ("/trainshed/v1/tokens:own", {}),
    ],
)
async def test_request_whose_token_is_revoked_during_its_body_has_no_effect(
    service: ApiServiceWithShells, path: str, body: dict[str, Any]
) -> None:
    token = add_user(service.tokens, "ana@corp.example")
    answer = await service.call(
        "POST", path, body, token=token, before_body=lambda: service.tokens.replace(AccessBook())
    )
    assert (answer.status, answer.error["status"]) == (401, "UNAUTHENTICATED")


async def test_brute_force_limit_covers_a_whole_ipv6_network(service: ApiServiceWithShells) -> None:
    report = partial(record_failed_authentication, service.services)
    strange = authentication_limits.AuthenticationLimiter(report)
    counts = [strange.count(f"2001:db8:0:7:{number:x}::1") for number in range(3)]
    others = [strange.count(address) for address in ("2001:db8:0:8::1", "::ffff:10.0.0.1")]
    assert (counts, others) == ([1, 2, 3], [1, 1])
    assert strange.count("::ffff:10.0.0.2") == 1
