"""Service accounts, their keys, and all ways in which Google's clients obtain tokens. Forged tokens
are rejected."""

import asyncio
import base64
import json
import re
import tracemalloc
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey
from msgspec.structs import replace

from tests.contract.api.api_service import LOCATION, START, Answer, ApiService
from tests.contract.api.violations import violations
from tests.people import add_user
from tests.unit.specs_requests import custom_job
from trainshed.access import account_tokens
from trainshed.access.account_tokens import GRANT
from trainshed.access.book import AccessBook
from trainshed.access.job_tokens import JobClaims
from trainshed.buckets.disk.objects import ObjectStore
from trainshed.core.errors import Unauthenticated
from trainshed.core.lifecycle.records import Job
from trainshed.core.names import JobUid, project_number
from trainshed.httpd.hosts import Hosts
from trainshed.serve.bucket_adapters import BucketAdapter

EMAIL = "trainer@p1.iam.gserviceaccount.com"
ACCOUNTS = "/v1/projects/p1/serviceAccounts"
ACCOUNT = f"{ACCOUNTS}/{EMAIL}"
GENERATE_TOKEN = f"/v1/projects/-/serviceAccounts/{EMAIL}:generateAccessToken"
JOBS = f"{LOCATION}/customJobs"
NOW = START // 10**9
LIVES = {"iat": NOW, "exp": NOW + 3_600}
AUDIENCE = "https://us-central1-aiplatform.googleapis.com/"


@pytest.fixture
async def service(tmp_path: Path) -> AsyncGenerator[ApiService]:
    """A service with an account that may use Vertex in project p1."""
    service = ApiService(tmp_path)
    body = {"accountId": "trainer", "serviceAccount": {"displayName": "Trainer"}}
    assert (await service.result("POST", ACCOUNTS, body))["email"] == EMAIL
    body = {"role": "roles/aiplatform.user", "member": f"serviceAccount:{EMAIL}", "project": "p1"}
    assert (await service.call("POST", "/trainshed/v1/access:change", body)).status == 200
    yield service
    service.close()


async def key_file(service: ApiService, email: str = EMAIL) -> dict[str, Any]:
    answer = await service.call("POST", f"{ACCOUNTS}/{email}/keys", {})
    return json.loads(base64.b64decode(answer.json["privateKeyData"]))


def sign_token(file: dict[str, Any], /, **claims: Any) -> str:
    """Return a token signed like Google's libraries do. A claim of None is omitted."""
    header = {"alg": "RS256", "kid": file["private_key_id"]}
    names = {"iss": EMAIL, "sub": EMAIL, "aud": AUDIENCE, **LIVES, **claims}
    sent = {name: value for name, value in names.items() if value is not None}
    return jwt.encode(header, sent, RSAKey.import_key(file["private_key"]))


async def exchange(service: ApiService, assertion: str) -> Answer:
    form = urlencode({"grant_type": GRANT, "assertion": assertion}).encode()
    return await service.call("POST", "/token", form, token=None)


async def access_token(service: ApiService, file: dict[str, Any]) -> str:
    assertion = sign_token(file, sub=None, aud="https://oauth2.googleapis.com/token", scope="all")
    return (await exchange(service, assertion)).json["access_token"]


async def has_access(service: ApiService, token: str) -> bool:
    return (await service.call("GET", JOBS, token=token)).status == 200


async def test_service_account_key_grants_the_accounts_rights(service: ApiService) -> None:
    """The client can exchange a token or sign one itself."""
    file = await key_file(service)
    assert file["token_uri"] == "http://trainshed.example/token"
    for token in (await access_token(service, file), sign_token(file)):
        assert await has_access(service, token)
        whoami = await service.call("GET", "/trainshed/v1/whoami", token=token)
        assert whoami.json["email"] == EMAIL


async def test_accounts_and_keys_are_listed_changed_deleted_and_audited(service: ApiService) -> None:
    file = await key_file(service)
    audit = (await service.result("GET", "/trainshed/v1/audit?project=p1"))["entries"]
    assert audit[0]["method"] == "google.iam.admin.v1.IAM.CreateServiceAccountKey"
    assert audit[0]["detail"] == {"key": file["private_key_id"]}
    assert file["private_key"] not in json.dumps(audit)
    [account] = (await service.result("GET", ACCOUNTS))["accounts"]
    assert account["displayName"] == "Trainer"
    # The service finds the number only of an existing project.
    await service.call("POST", "/v1/projects", {"projectId": "p1"})
    for project in ("-", project_number("p1")):
        for name in (EMAIL, account["uniqueId"]):
            path = f"/v1/projects/{project}/serviceAccounts/{name}"
            assert await service.result("GET", path) == account
    [key] = (await service.result("GET", f"{ACCOUNT}/keys"))["keys"]
    assert key["name"].endswith(f"/keys/{file['private_key_id']}")
    assert "privateKeyData" not in key
    both = {"displayName": "B", "description": "C"}
    for mask, sent, texts in (
        (None, {"description": "nightly"}, {"description": "nightly"}),
        ("displayName", both, {"displayName": "B", "description": "nightly"}),
        ("description", {}, {"displayName": "B"}),
    ):
        body = {"serviceAccount": sent, "updateMask": mask}
        assert await service.result("PATCH", ACCOUNT, body) == {**account, **texts}
    assert await service.result("DELETE", ACCOUNT) == {}
    assert await service.result("GET", ACCOUNTS) == {"accounts": []}
    assert (await service.call("GET", ACCOUNT)).status == 404
    anywhere = await service.call("GET", f"/v1/projects/-/serviceAccounts/{EMAIL}")
    assert f"service account '{EMAIL}' does not exist. Create it: `gcloud iam" in anywhere.error["message"]


async def test_wrong_fields_of_a_service_account_are_reported(service: ApiService) -> None:
    body = {"accountId": "Bad", "serviceAccount": {"displayName": 5}}
    faults = violations(await service.call("POST", ACCOUNTS, body))
    assert list(faults) == ["accountId", "serviceAccount"]
    # Policies reject such an address, or confuse it with an account of the same name.
    for project in ("P1", "corp.example:p1", "a_b"):
        path = ACCOUNTS.replace("p1", project)
        faults = violations(await service.call("POST", path, {"accountId": "trainer"}))
        assert list(faults) == ["name"]
    assert (await service.call("POST", ACCOUNTS, {"accountId": "trainer"})).status == 409
    assert (await service.call("POST", ACCOUNTS, b"[]")).status == 400
    assert (await service.call("PATCH", ACCOUNT, {"updateMask": "disabled"})).status == 400
    assert (await service.call("POST", f"{ACCOUNT}/keys", {"privateKeyType": "P12"})).status == 400
    for _ in range(10):
        await key_file(service)
    refused = await service.call("POST", f"{ACCOUNT}/keys", {})
    assert refused.error["status"] == "FAILED_PRECONDITION"


async def test_tokens_of_deleted_key_or_disabled_account_are_rejected(service: ApiService) -> None:
    """After a key is deleted, or an account is disabled or deleted, its earlier tokens and assertions are
    rejected. A new account with the same address does not inherit the permissions of the deleted account."""
    file = await key_file(service)
    token = await access_token(service, file)
    job = JobClaims(1, 1, "workerpool0-0", "p1", EMAIL)
    program, _ = service.jobs.mint(job)
    principal = service.tokens.authenticate(f"Bearer {program}")
    await service.call("POST", f"{ACCOUNT}:disable", {})
    assert not service.tokens.is_valid(principal), "what goes on for it ends"
    assert [await has_access(service, taken) for taken in (token, sign_token(file), program)] == [False] * 3
    assert (await exchange(service, sign_token(file))).json["error"] == "invalid_grant"
    await service.call("POST", f"{ACCOUNT}:enable", {})
    assert await has_access(service, token) and await has_access(service, program)
    await service.call("DELETE", f"{ACCOUNT}/keys/{file['private_key_id']}")
    assert not await has_access(service, token) and not await has_access(service, sign_token(file))
    other, lent = (
        await key_file(service),
        (await service.call("POST", GENERATE_TOKEN, {})).json["accessToken"],
    )
    service.clock += 10**9
    await service.call("DELETE", ACCOUNT)
    assert not await has_access(service, program)
    await service.call("POST", ACCOUNTS, {"accountId": "trainer"})
    for former in (sign_token(other), lent, program):
        assert (await service.call("GET", JOBS, token=former)).status == 401
    later = replace(job, job_uid=(service.clock // 10**6 + 1) << 22)
    assert await has_access(service, service.jobs.mint(later)[0])
    assert (await service.call("GET", JOBS, token=sign_token(await key_file(service)))).status == 403


async def test_job_with_disabled_or_deleted_account_is_rejected(service: ApiService) -> None:
    own = custom_job(serviceAccount=EMAIL)
    for verb, path, words in (
        ("POST", f"{ACCOUNT}:disable", f"is disabled, .* gcloud iam service-accounts enable {EMAIL}"),
        ("DELETE", ACCOUNT, "was deleted, .* gcloud iam service-accounts create"),
    ):
        await service.call(verb, path, {})
        explained = {"api": "vertex", "project": "p1", "location": "us-central1", "job": own}
        for asks, body in ((JOBS, own), ("/trainshed/v1/jobs:explain", explained)):
            refused = (await service.call("POST", asks, body)).error
            assert refused["status"] == "FAILED_PRECONDITION"
            assert re.search(words, refused["message"])
    await service.call("POST", ACCOUNTS, {"accountId": "trainer"})
    assert (await service.call("POST", JOBS, own)).status == 200


@pytest.mark.parametrize("deleted", [ACCOUNT, "/v1/projects/p1"])
async def test_job_timeline_shows_changes_of_its_service_account(service: ApiService, deleted: str) -> None:
    for uid, account in ((JobUid(1000), EMAIL), (JobUid(1001), "")):
        await service.result("POST", JOBS, custom_job(serviceAccount=account))
        job, _ = await service.store.reader.job_by_uid(uid)
        assert isinstance(job, Job)
        service.capacity.held += (job,)
    steps = (f"{ACCOUNT}:disable", "disabled"), (f"{ACCOUNT}:enable", "enabled again")
    for path, what in (*steps, (deleted, "deleted")):
        await service.call("DELETE" if path == deleted else "POST", path, {})
        last = (await service.store.reader.timeline(JobUid(1000)))[-1].message
        assert f"The service account {EMAIL} of the job's programs was {what}." in last
        assert ("are rejected" in last) is (what != "enabled again")
    others = await service.store.reader.timeline(JobUid(1001))
    assert not any(EMAIL in entry.message for entry in others)


async def test_concurrent_changes_of_a_service_account_are_all_kept(
    service: ApiService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disabled account remains disabled when its description changes, and a deleted project
    remains deleted. A key of a deleted account is invalid."""
    texts = {"serviceAccount": {"description": "nightly"}}
    await asyncio.gather(
        service.call("POST", f"{ACCOUNT}:disable", {}), service.call("PATCH", ACCOUNT, texts)
    )
    account = await service.result("GET", ACCOUNT)
    assert (account["disabled"], account["description"]) == (True, "nightly")
    await service.result("POST", "/v1/projects", {"projectId": "vision"})
    await asyncio.gather(
        service.call("DELETE", "/v1/projects/vision"),
        service.call("PUT", "/v1/projects/vision", {"name": "Vision"}),
    )
    vision = await service.result("GET", "/v1/projects/vision")
    assert vision["lifecycleState"] == "DELETE_REQUESTED"
    made, loop = account_tokens.new_key(), asyncio.get_running_loop()

    def made_late() -> tuple[str, str]:
        deleted = asyncio.run_coroutine_threadsafe(service.call("DELETE", ACCOUNT), loop).result(60)
        assert deleted.status == 200
        return made

    monkeypatch.setattr(account_tokens, "new_key", made_late)
    assert (await service.call("POST", f"{ACCOUNT}/keys", {})).status == 404
    assert not service.tokens.book.keys


@pytest.mark.parametrize("path", [ACCOUNT, "/v1/projects/p1"])
async def test_deleted_account_is_removed_from_bucket_policies(
    service: ApiService, tmp_path: Path, path: str
) -> None:
    store = ObjectStore(tmp_path / "buckets")
    service.keeper.forget = BucketAdapter(store).forget
    store.catalog.create("theirs-1", project="p2")
    member, role = f"serviceAccount:{EMAIL}", "roles/storage.objectViewer"
    both = {"role": role, "members": [member, "user:ana@corp.example"]}
    store.catalog.set_policy("theirs-1", [both, {"role": "roles/storage.admin", "members": [member]}])
    assert (await service.call("DELETE", path)).status == 200
    assert store.catalog.get("theirs-1").policy == [{**both, "members": both["members"][1:]}]


async def test_token_lifetime_is_at_most_an_hour(service: ApiService) -> None:
    file = await key_file(service)
    token, own = await access_token(service, file), sign_token(file)
    half = sign_token(file, exp=NOW + 60.5, aud=None, scope="any")
    bearer = account_tokens.read(half, b"", service.services.access.book, NOW, Hosts(()))
    assert isinstance(bearer.expires, int), "sessions keep it"
    for wrong in (
        {"exp": NOW + 3_700},
        {"iat": NOW + 600, "exp": NOW + 700},
        {"nbf": NOW + 600},
        {"exp": None},
        {"iat": None},
        {"exp": "soon"},
        {"exp": float("inf")},
    ):
        assert not await has_access(service, sign_token(file, **wrong)), wrong
    service.clock += 3_601 * 10**9
    assert not await has_access(service, token)
    service.clock += 60 * 10**9
    assert not await has_access(service, own)


async def test_forged_tokens_are_rejected(service: ApiService) -> None:
    """The forgeries: `alg=none`; the public key used as a shared secret; another algorithm, key,
    account or subject; a modified token; a token without audience."""
    file = await key_file(service)
    own, claims = RSAKey.import_key(file["private_key"]), {"iss": EMAIL, "sub": EMAIL, **LIVES}
    kid = file["private_key_id"]
    [key] = service.services.access.book.keys.values()

    def encode(part: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    ours = {**claims, "key": kid, "by": "", "aud": AUDIENCE}
    as_secret = OctKey.import_key(base64.b64encode(key.public.encode()))
    real = sign_token(file)
    head, body, signature = real.split(".")
    forged = {
        "none": f"{encode({'alg': 'none', 'kid': kid})}.{body}.",
        "none with a signature": f"{encode({'alg': 'none', 'kid': kid})}.{body}.{signature}",
        "public key as secret": jwt.encode({"alg": "HS256", "kid": kid}, ours, as_secret),
        "other algorithm": jwt.encode({"alg": "RS512", "kid": kid}, claims, own, algorithms=["RS512"]),
        "other key": jwt.encode(
            {"alg": "RS256", "kid": kid}, {**claims, "aud": AUDIENCE}, RSAKey.generate_key(2048)
        ),
        "no kid": jwt.encode({"alg": "RS256"}, {**claims, "aud": AUDIENCE}, own),
        "other account": sign_token(file, iss="else@p1.iam.gserviceaccount.com"),
        "other subject": sign_token(file, sub="owner@trainshed.local"),
        "issuer in a list": sign_token(file, iss=[EMAIL]),
        "changed": f"{head}.{encode({**claims, 'sub': 'owner@trainshed.local'})}.{signature}",
        "for nobody": sign_token(file, aud=None),
        "no token": f"{head}.{head}.{head}",
        "embedded key": jwt.encode(
            {"alg": "RS256", "kid": "mine", "jwk": own.as_dict(private=False)}, claims, own
        ),
    }
    assert await has_access(service, real)
    for name, token in forged.items():
        answer = await service.call("GET", JOBS, token=token)
        assert (answer.status, answer.error["status"]) == (401, "UNAUTHENTICATED"), name
        assert (await exchange(service, token)).json["error"] == "invalid_grant", name


async def test_token_for_another_audience_is_rejected(service: ApiService) -> None:
    """The audience must be one of the service's names or one of Google's names, because client libraries sign
    tokens for Google's names whatever the address is."""
    file = await key_file(service)
    own = (AUDIENCE, "https://oauth2.googleapis.com/token", "http://trainshed.example/token")
    own = (*own, "https://127.0.0.1:8080/google.cloud.ml.v1", ["https://else.example/", AUDIENCE])
    other = ("https://else.example/", "https://googleapis.com.else.example/", "trainshed.example")
    other = (*other, "https://192.0.2.7/token", "https://[2001:db8::7]/", "https://8.8.8.8:443/")
    other = (*other, "https://else.example/?//trainshed.example/", "https://@localhost/", 7)
    for audience in (*own, *other):
        token = sign_token(file, aud=audience)
        assert await has_access(service, token) == (audience in own), audience
        assert ((await exchange(service, token)).status == 200) == (audience in own), audience


async def test_forged_tokens_use_no_memory() -> None:
    """An anonymous caller can send thousands of tokens, each as long as a request head may be."""
    forger = OctKey.generate_key(256)
    tracemalloc.start()
    for number in range(60):
        token = jwt.encode({"alg": "HS256"}, {"n": number, "x": "x" * 30_000}, forger)
        with pytest.raises(Unauthenticated):
            account_tokens.read(token, b"k" * 32, AccessBook(), NOW, Hosts())
    assert tracemalloc.get_traced_memory()[0] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("group", ["", "ml"])
async def test_token_creator_can_impersonate_a_service_account(service: ApiService, group: str) -> None:
    """`generateAccessToken`: the token lasts at most an hour and ends with the role, which may come
    from a group. The audit log contains both identities."""
    creator = "roles/iam.serviceAccountTokenCreator"
    ana = add_user(service.tokens, "ana@corp.example", creator, "p1", group)
    answer = await service.call("POST", GENERATE_TOKEN, {"lifetime": "600s", "scope": ["x"]}, token=ana)
    token = answer.json["accessToken"]
    assert await has_access(service, token) and not await has_access(service, ana)
    await service.result("POST", JOBS, custom_job(), token=token)
    job, made, *_ = (await service.result("GET", "/trainshed/v1/audit?project=p1"))["entries"]
    assert (made["who"], made["resource"].rpartition("/")[2]) == ("ana@corp.example", EMAIL)
    assert (job["who"], job["actingAs"]) == ("ana@corp.example", EMAIL)
    for wrong in ({"lifetime": "7200s"}, {"lifetime": "soon"}, {"delegates": ["x"]}):
        assert (await service.call("POST", GENERATE_TOKEN, wrong, token=ana)).status == 400
    member = "group:ml" if group else "user:ana@corp.example"
    body = {"role": creator, "member": member, "project": "p1", "remove": True}
    await service.call("POST", "/trainshed/v1/access:change", body)
    assert not await has_access(service, token)


async def test_impersonated_token_ends_with_the_impersonators_access(service: ApiService) -> None:
    """Tokens that a caller obtained for an account end with the caller's own access: when their
    tokens are revoked, or the key that signed theirs is deleted, or their account is disabled.
    An impersonated token cannot obtain further tokens, which would last longer."""
    helper = "helper@p1.iam.gserviceaccount.com"
    await service.result("POST", ACCOUNTS, {"accountId": "helper"})
    file, creator = await key_file(service, helper), "roles/iam.serviceAccountTokenCreator"
    add_user(service.tokens, EMAIL, creator, "p1")
    for borrower, verb, path in (
        ("ana@corp.example", "DELETE", "/trainshed/v1/tokens/ana@corp.example"),
        (helper, "DELETE", f"{ACCOUNTS}/{helper}/keys/{file['private_key_id']}"),
        (helper, "POST", f"{ACCOUNTS}/{helper}:disable"),
    ):
        own = add_user(service.tokens, borrower, creator, "p1")
        own = sign_token(file, iss=helper, sub=helper) if "/keys/" in path else own
        lent = (await service.call("POST", GENERATE_TOKEN, {}, token=own)).json["accessToken"]
        assert await has_access(service, lent)
        assert (await service.call("POST", GENERATE_TOKEN, {}, token=lent)).status == 400
        assert (await service.call(verb, path, {})).status == 200
        for token in (own, lent):
            assert (await service.call("GET", JOBS, token=token)).status == 401


@pytest.mark.parametrize("role", ["roles/editor", "roles/aiplatform.admin", "roles/iam.serviceAccountUser"])
async def test_users_without_the_required_role_cannot_create_keys_or_tokens_of_an_account(
    service: ApiService, role: str
) -> None:
    """The error does not reveal accounts of other projects."""
    bo = add_user(service.tokens, "bo@corp.example", role, "p1")
    eve = add_user(service.tokens, "eve@corp.example", "roles/owner", "p2")
    for token, project in ((bo, "p1"), (eve, "p1"), (eve, "-")):
        path = f"/v1/projects/{project}/serviceAccounts"
        answers = [
            await service.call("POST", f"{path}/{name}{verb}", {}, token=token)
            for verb in (":generateAccessToken", "/keys")
            for name in (EMAIL, EMAIL.replace("trainer", "nobody"))
        ]
        assert {answer.status for answer in answers} == {403}
        texts = [answer.error["message"].replace("nobody", "trainer") for answer in answers]
        assert texts[0] == texts[1] and texts[2] == texts[3]
