"""Who may do what with a bucket (spec/program#storage): own project, shared buckets, grants; and the keys in
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
from trainshed.buckets.callers import (
    UNKNOWN,
    Caller,
    Reach,
    address_with_key,
    split_key,
    storage_key,
)
from trainshed.buckets.errors import Forbidden, Unauthenticated
from trainshed.buckets.setup import BucketRules
from trainshed.core.names import default_bucket, project_number

PERSON = Caller("owner@x", {"": Reach.ADMIN})
PROGRAM = Caller("sa@p", program=JobClaims(7, 1, "workerpool0-0", "p", "sa@p"))
OWN, SHARED, OTHER = (
    BucketAccess("own", "p"),
    BucketAccess("shared", "q", shared=True),
    BucketAccess("other", "q"),
)


def granted(role: str, *members: str, **more: Any) -> BucketAccess:
    return BucketAccess("other", "q", bindings=({"role": role, "members": list(members), **more},))


EVERYTHING = sorted({permission for held in GRANTS.values() for permission in held})


def test_people_may_do_everything() -> None:
    for access, permission in itertools.product((OWN, SHARED, OTHER), EVERYTHING):
        assert is_allowed(PERSON, permission, access)
        assert not is_allowed(UNKNOWN, permission, access)


def test_a_program_has_its_own_project_s_buckets_and_what_is_in_shared_ones() -> None:
    held = {
        access.name: [
            permission for permission in EVERYTHING if is_allowed(PROGRAM, permission, access)
        ]
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
        (granted("roles/storage.objectViewer", "serviceAccount:sa@p"), True, False),
        (granted("roles/storage.objectUser", "serviceAccount:sa@p"), True, True),
        (granted("roles/storage.objectAdmin", "projectEditor:p"), True, True),
        (granted("roles/storage.objectViewer", "allAuthenticatedUsers"), True, False),
        (granted("roles/storage.objectViewer", "serviceAccount:other@p"), False, False),
        (granted("roles/storage.objectViewer", "projectEditor:r"), False, False),
        (granted("roles/storage.objectCreator", "serviceAccount:sa@p"), False, False),
        (granted("roles/storage.objectAdmin", "allUsers", condition={"title": "t"}), False, False),
        (
            BucketAccess("other", "q", bindings=({"role": "roles/storage.objectAdmin"},)),
            False,
            False,
        ),
    ],
)
def test_a_grant_goes_as_far_as_its_role(access: BucketAccess, read: bool, write: bool) -> None:
    """A condition, which is not evaluated, makes a grant worth nothing rather than everything."""
    assert is_allowed(PROGRAM, "storage.objects.get", access) is read
    assert is_allowed(PROGRAM, "storage.objects.delete", access) is write
    assert not is_allowed(UNKNOWN, "storage.objects.get", access)
    public = granted("roles/storage.objectViewer", "allUsers")
    assert is_allowed(UNKNOWN, "storage.objects.get", public)
    assert not is_allowed(UNKNOWN, "storage.objects.create", public)


def test_a_directory_shows_what_all_programs_of_the_project_may_write() -> None:
    """Nobody asks again behind a mount: reading alone, or one service account's grant, is not enough."""
    assert is_visible("p", OWN)
    assert is_visible("p", SHARED)
    assert is_visible("p", granted("roles/storage.objectAdmin", "projectEditor:p"))
    assert not is_visible("p", OTHER)
    assert not is_visible("p", granted("roles/storage.objectViewer", "allUsers"))
    assert not is_visible("p", granted("roles/storage.objectAdmin", "serviceAccount:sa@p"))


def test_a_job_is_refused_only_where_no_program_of_its_project_could_read() -> None:
    assert is_readable("p", OWN)
    assert not is_readable("p", OTHER)
    # An account of its owner is none of the job's.
    theirs = "serviceAccount:any@q.iam.gserviceaccount.com"
    assert not is_readable("p", granted("roles/storage.objectViewer", theirs))
    mine = "serviceAccount:any@p.iam.gserviceaccount.com"
    assert is_readable("p", granted("roles/storage.objectViewer", mine))
    # What the service itself reads for a job it reads as the job.
    agent = f"service-{project_number('p')}@gcp-sa-aiplatform-cc.iam.gserviceaccount.com"
    assert not is_readable("p", granted("roles/storage.objectViewer", mine), agent)
    usual = granted("roles/storage.objectViewer", f"serviceAccount:{agent}")
    assert is_readable("p", usual) and is_readable("p", usual, agent)


@pytest.mark.parametrize("project", ["p", "Example.com:Lab", "p" * 60, "trainshed"])
def test_a_program_makes_no_bucket_in_which_others_stage_code(project: str) -> None:
    """Issue: staging per project. Whoever is first with such a name would be given another project's code."""
    rules = BucketRules("trainshed")
    program = Caller("sa@p", program=JobClaims(7, 1, "workerpool0-0", project, "sa@p"))
    own = default_bucket("trainshed", project)
    for name in (own, "trainsheds", "my-trainshed-q", f"{project}-vertex-staging-us-central1-12ab"):
        admit_name(program, name, rules)
    for name in (
        "trainshed-q",
        "trainshed-",
        "q-vertex-staging-eu1-1a",
        "trainshed-q-vertex-staging-x",
    ):
        with pytest.raises(Forbidden, match="is reserved for the code of the project in it"):
            admit_name(program, name, rules)
        admit_name(PERSON, name, rules)


def test_refusals_say_why_and_what_to_do() -> None:
    with pytest.raises(Forbidden, match=r"sa@p .* other\. .*Grant it a role") as refusal:
        admit(PROGRAM, "storage.objects.get", OTHER)
    # Whose it is concerns nobody else.
    assert "project q" not in str(refusal.value)
    with pytest.raises(Unauthenticated, match="trainshed env"):
        admit(UNKNOWN, "storage.objects.get", OWN)
    admit(PROGRAM, "storage.objects.get", None)
    with pytest.raises(Forbidden, match="project q"):
        admit_project(PROGRAM, "storage.buckets.create", "q")
    admit_project(PROGRAM, "storage.buckets.create", "p")


def test_a_key_is_told_from_a_bucket_of_that_name() -> None:
    address = address_with_key("http://h:1/", "token")
    key = storage_key("token")
    assert address == f"http://h:1/with/{key}"
    assert "token" not in address
    assert split_key(f"/with/{key}/storage/v1/b".encode()) == (key, b"/storage/v1/b")
    assert split_key(f"/with/{key}".encode()) == (key, b"/")
    for plain in (b"/with/object", b"/storage/v1/b/with/o/x", b"/with/" + b"k" * 33 + b"/x"):
        assert split_key(plain) == (None, plain)
    assert storage_key("token") != storage_key("tokem")


def test_no_role_grants_what_cannot_be_asked_about() -> None:
    assert frozenset[str]().union(*GRANTS.values()) == ADMIN_BUCKETS
