"""E-mail addresses are compared without case everywhere in the service."""

from typing import Any

from tests.contract.api.api_service import LOCATION, ApiService
from tests.unit.specs_requests import custom_job
from trainshed.access.book import AccessBook, Token, book_of, documents
from trainshed.access.policy import Grant, Policy
from trainshed.access.principals import Principal
from trainshed.buckets.admission import BucketAccess, is_allowed
from trainshed.buckets.callers import Caller, Reach
from trainshed.core.capacity import QuotaKey
from trainshed.core.lifecycle.records import ActingJob, Actor
from trainshed.core.names import Api, JobName, JobUid
from trainshed.core.units import Nanos
from trainshed.core.usage import MachineTime

OURS = "/trainshed/v1"
TYPED, ANA = "Ana.Smith@Corp.Example", "ana.smith@corp.example"
JOB = JobName(Api.VERTEX, "p", "us-central1", "1")


async def token_of(service: ApiService, email: str = TYPED) -> dict[str, Any]:
    body = {"email": email, "role": "roles/owner", "project": "p1"}
    return await service.result("POST", f"{OURS}/tokens", body)


async def test_quota_for_capitalized_email_limits_the_user(service: ApiService) -> None:
    token = (await token_of(service))["token"]
    quota = {"project": "p1", "metric": "jobs", "user": TYPED.upper(), "limit": 1}
    assert (await service.result("POST", f"{OURS}/quotas:set", quota))["user"] == ANA
    await service.result("POST", f"{LOCATION}/customJobs", custom_job(), token=token)
    ((key, limit),) = await service.store.reader.quotas()
    assert (key.person, limit) == (ANA, 1)
    for typed in (ANA, TYPED, "me"):
        path = f"{OURS}/jobs?project=p1&user={typed}"
        (listed,) = (await service.result("GET", path, token=token))["jobs"]
        assert listed["user"] == key.person
    cleared = quota | {"user": TYPED, "limit": "unlimited"}
    await service.result("POST", f"{OURS}/quotas:set", cleared)
    assert await service.store.reader.quotas() == ()


async def test_tokens_and_roles_are_found_by_email_in_any_case(service: ApiService) -> None:
    made = await token_of(service)
    assert made["email"] == ANA
    listed = (await service.result("GET", f"{OURS}/tokens?email={TYPED}"))["tokens"]
    assert [token["email"] for token in listed] == [ANA]
    await token_of(service, ANA)
    (grant,) = (await service.result("GET", f"{OURS}/access?project=p1"))["grants"]
    assert grant["member"] == f"user:{ANA}", "one grant, whichever way it is typed"
    change = {"project": "p1", "role": "roles/owner", "member": f"user:{TYPED}", "remove": True}
    await service.result("POST", f"{OURS}/access:change", change)
    assert (await service.result("GET", f"{OURS}/access?project=p1"))["grants"] == []
    await service.result("DELETE", f"{OURS}/tokens/{TYPED.upper()}")
    assert (await service.result("GET", f"{OURS}/tokens"))["tokens"] == []


async def test_owner_and_service_account_emails_are_case_insensitive(service: ApiService) -> None:
    refused = await service.call("POST", f"{OURS}/tokens", {"email": "Owner@Trainshed.Local"})
    assert refused.status == 400
    path = "/v1/projects/p1/serviceAccounts"
    made = await service.result("POST", path, {"accountId": "nightly"})
    spelled = made["email"].replace("nightly", "Nightly")
    token = (await token_of(service, spelled))["token"]
    assert (await service.call("GET", f"{OURS}/whoami", token=token)).status == 200
    await service.result("POST", f"{path}/{spelled}:disable")
    assert (await service.call("GET", f"{OURS}/whoami", token=token)).status == 401
    body = custom_job()
    body["jobSpec"]["serviceAccount"] = spelled
    refused = await service.call("POST", f"{LOCATION}/customJobs", body)
    assert (refused.status, "is disabled" in str(refused.error)) == (400, True)


def test_every_record_stores_email_addresses_in_lower_case() -> None:
    assert QuotaKey("p", "global", "jobs", TYPED).person == ANA
    assert Actor(TYPED).person == ANA
    assert ActingJob(JobUid(1), JOB, JobUid(1), TYPED).person == ANA
    assert MachineTime("p", TYPED, (), "", "", "").person == ANA
    assert Principal(TYPED).email == ANA
    assert Token("0" * 64, TYPED, Nanos(1)).email == ANA
    assert Grant("p", "roles/viewer", f"user:{TYPED}").member == f"user:{ANA}"


def test_access_policy_of_an_earlier_version_is_converted_to_lower_case() -> None:
    earlier = {
        ("token", "d"): b'{"digest":"d","email":"Ana.Smith@Corp.Example","created":1}',
        ("grant", "p/roles/viewer/user:Ana.Smith@Corp.Example"): (
            b'{"project":"p","role":"roles/viewer","member":"user:Ana.Smith@Corp.Example"}'
        ),
    }
    book = book_of(earlier)
    assert book.policy.rights(TYPED).projects and book.tokens["d"].email == ANA
    # The next change of the policy replaces the keys with capitals.
    assert ("grant", f"p/roles/viewer/user:{ANA}") in documents(book)


def test_group_names_are_case_sensitive() -> None:
    grants = (Grant("p", "roles/viewer", "group:ML-Team"),)
    book = AccessBook(policy=Policy(grants))
    assert book.policy.rights(ANA, ("ML-Team",)).projects
    assert not book.policy.rights(ANA, ("ml-team",)).projects


def test_bucket_policy_matches_email_in_any_case() -> None:
    binding = {"role": "roles/storage.objectViewer", "members": [f"user:{TYPED}"]}
    holding = BucketAccess("b", "p", bindings=(binding,))
    caller = Caller(ANA, reach={"p": Reach.NOTHING})
    assert is_allowed(caller, "storage.objects.get", holding)
    assert not is_allowed(Caller("bo@corp.example"), "storage.objects.get", holding)
