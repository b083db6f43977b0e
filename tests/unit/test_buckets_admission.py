"""Permissions for buckets (spec/program#storage) of the caller's project, shared buckets, grants, and keys in
addresses."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from trainshed.access.job_tokens import JobClaims
from trainshed.access.permissions import ADMIN_BUCKETS
from trainshed.buckets.admission import (
    GRANTS,
    BucketAccess,
    admit,
    admit_name,
    admit_project,
    is_allowed,
    is_readable,
    is_visible,
)
from trainshed.buckets.callers import UNKNOWN, Caller, Reach, address_with_key, split_key, storage_key
from trainshed.buckets.errors import Forbidden, Unauthenticated
from trainshed.buckets.setup import BucketRules
from trainshed.core.names import default_bucket, project_number

PERSON = Caller("owner@x", {"": Reach.ADMIN})
PROGRAM = Caller("sa@p", program=JobClaims(7, 1, "workerpool0-0", "p", "sa@p"))
OWN, SHARED, OTHER = (
    BucketAccess("own", "p"),
    BucketAccess("shared", "q", is_shared=True),
    BucketAccess("other", "q"),
)


def bucket_with_binding(role: str, *members: str, **more: Any) -> BucketAccess:
    return BucketAccess("other", "q", bindings=({"role": role, "members": list(members), **more},))


EVERYTHING = sorted({permission for held in GRANTS.values() for permission in held})


def test_owner_has_all_bucket_permissions_and_anonymous_caller_has_none() -> None:
    for access, permission in itertools.product((OWN, SHARED, OTHER), EVERYTHING):
        assert is_allowed(PERSON, permission, access)
        assert not is_allowed(UNKNOWN, permission, access)


def test_program_may_use_buckets_of_its_own_project_and_objects_of_shared_buckets() -> None:
    held = {
        access.name: [permission for permission in EVERYTHING if is_allowed(PROGRAM, permission, access)]
        for access in (OWN, SHARED, OTHER)
    }
    assert held == {
        "own": EVERYTHING,
        "shared": [
            "storage.buckets.get",
            *(f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list", "update")),
        ],
        "other": [],
    }


@pytest.mark.parametrize(
    ("access", "read", "write"),
    [
        (bucket_with_binding("roles/storage.objectViewer", "serviceAccount:sa@p"), True, False),
        (bucket_with_binding("roles/storage.objectUser", "serviceAccount:sa@p"), True, True),
        (bucket_with_binding("roles/storage.objectAdmin", "projectEditor:p"), True, True),
        (bucket_with_binding("roles/storage.objectViewer", "allAuthenticatedUsers"), True, False),
        (bucket_with_binding("roles/storage.objectViewer", "serviceAccount:other@p"), False, False),
        (bucket_with_binding("roles/storage.objectViewer", "projectEditor:r"), False, False),
        (bucket_with_binding("roles/storage.objectCreator", "serviceAccount:sa@p"), False, False),
        (
            bucket_with_binding("roles/storage.objectAdmin", "allUsers", condition={"title": "t"}),
            False,
            False,
        ),
        (BucketAccess("other", "q", bindings=({"role": "roles/storage.objectAdmin"},)), False, False),
    ],
)
def test_bucket_grant_gives_exactly_the_permissions_of_the_granted_role(
    access: BucketAccess, read: bool, write: bool
) -> None:
    """A conditional grant gives no permissions, because conditions are not evaluated."""
    assert is_allowed(PROGRAM, "storage.objects.get", access) is read
    assert is_allowed(PROGRAM, "storage.objects.delete", access) is write
    assert not is_allowed(UNKNOWN, "storage.objects.get", access)
    public = bucket_with_binding("roles/storage.objectViewer", "allUsers")
    assert is_allowed(UNKNOWN, "storage.objects.get", public)
    assert not is_allowed(UNKNOWN, "storage.objects.create", public)


def test_gcs_directory_shows_only_buckets_that_all_programs_of_the_project_may_write() -> None:
    """Access through the mounted directory has no further permission checks. Read access, or a grant to a
    single service account, is not sufficient."""
    assert is_visible("p", OWN)
    assert is_visible("p", SHARED)
    assert is_visible("p", bucket_with_binding("roles/storage.objectAdmin", "projectEditor:p"))
    assert not is_visible("p", OTHER)
    assert not is_visible("p", bucket_with_binding("roles/storage.objectViewer", "allUsers"))
    assert not is_visible("p", bucket_with_binding("roles/storage.objectAdmin", "serviceAccount:sa@p"))


def test_bucket_is_readable_for_a_job_if_an_account_of_the_project_may_read_the_bucket() -> None:
    assert is_readable("p", OWN)
    assert not is_readable("p", OTHER)
    # The bucket's own project differs from the job's.
    theirs = "serviceAccount:any@q.iam.gserviceaccount.com"
    assert not is_readable("p", bucket_with_binding("roles/storage.objectViewer", theirs))
    mine = "serviceAccount:any@p.iam.gserviceaccount.com"
    assert is_readable("p", bucket_with_binding("roles/storage.objectViewer", mine))
    # The service reads files for a job with the permissions of the job's own service account.
    agent = f"service-{project_number('p')}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
    assert not is_readable("p", bucket_with_binding("roles/storage.objectViewer", mine), agent)
    usual = bucket_with_binding("roles/storage.objectViewer", f"serviceAccount:{agent}")
    assert is_readable("p", usual) and is_readable("p", usual, agent)


@pytest.mark.parametrize("project", ["p", "Example.com:Lab", "p" * 60, "trainshed"])
def test_program_cannot_create_another_projects_staging_bucket(project: str) -> None:
    """Clients upload code to the bucket with this name. Its creator would receive the code of the other
    project."""
    rules = BucketRules("trainshed")
    program = Caller("sa@p", program=JobClaims(7, 1, "workerpool0-0", project, "sa@p"))
    own = default_bucket("trainshed", project)
    for name in (own, "trainsheds", "my-trainshed-q", f"{project}-vertex-staging-us-central1-12ab"):
        admit_name(program, name, rules)
    for name in ("trainshed-q", "trainshed-", "q-vertex-staging-eu1-1a", "trainshed-q-vertex-staging-x"):
        with pytest.raises(
            Forbidden, match="is reserved for the code of the project whose ID the name contains"
        ):
            admit_name(program, name, rules)
        admit_name(PERSON, name, rules)


def test_error_of_a_denied_bucket_request_contains_cause_and_remedy() -> None:
    with pytest.raises(Forbidden, match=r"sa@p .* other\. .*Grant the job's service account") as refusal:
        admit(PROGRAM, "storage.objects.get", OTHER)
    # Other projects must not learn the owner of the bucket.
    assert "project q" not in str(refusal.value)
    with pytest.raises(Unauthenticated, match="trainshed env"):
        admit(UNKNOWN, "storage.objects.get", OWN)
    admit(PROGRAM, "storage.objects.get", None)
    with pytest.raises(Forbidden, match="project q"):
        admit_project(PROGRAM, "storage.buckets.create", "q")
    admit_project(PROGRAM, "storage.buckets.create", "p")


def test_access_key_in_a_url_path_is_distinguished_from_a_bucket_name() -> None:
    address = address_with_key("http://h:1/", "token")
    key = storage_key("token")
    assert address == f"http://h:1/with/{key}"
    assert "token" not in address
    assert split_key(f"/with/{key}/storage/v1/b".encode()) == (key, b"/storage/v1/b")
    assert split_key(f"/with/{key}".encode()) == (key, b"/")
    for plain in (b"/with/object", b"/storage/v1/b/with/o/x", b"/with/" + b"k" * 33 + b"/x"):
        assert split_key(plain) == (None, plain)
    assert storage_key("token") != storage_key("tokem")


def test_roles_contain_only_known_permissions() -> None:
    assert frozenset[str]().union(*GRANTS.values()) == ADMIN_BUCKETS
