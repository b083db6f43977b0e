"""Properties of buckets and objects besides their content. The service applies them or rejects them by name.
It never reports a property without effect."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.storage_api import ITEM, UPLOAD, Ask, ask, put_object, store
from trainshed.buckets.admission import is_allowed
from trainshed.buckets.callers import UNKNOWN
from trainshed.buckets.disk.objects import ObjectStore

__all__ = ["ask", "store"]

BUCKET = "/storage/v1/b/bucket"

UNDONE: list[dict[str, Any]] = [
    {"retentionPolicy": {"retentionPeriod": "3"}},
    {"objectRetention": {"mode": "Enabled"}},
    {"softDeletePolicy": {"retentionDurationSeconds": "604800"}},
    {"autoclass": {"enabled": True}},
    {"encryption": {"defaultKmsKeyName": "projects/p/locations/us/keyRings/r/cryptoKeys/k"}},
    {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": {"age": 1}}]}},
    {"cors": [{"origin": ["*"]}]},
    {"acl": [{"entity": "allUsers", "role": "READER"}]},
    {"somethingOfNextYear": {"on": True}},
]


@pytest.mark.parametrize("resource", UNDONE, ids=lambda resource: next(iter(resource)))
def test_error_names_the_unsupported_bucket_property(ask: Ask, resource: dict[str, Any]) -> None:
    (name,) = resource
    for method, target, body in (
        ("POST", "/storage/v1/b?project=p", {"name": "other", **resource}),
        ("PATCH", BUCKET, {"labels": {"a": "b"}, **resource}),
        ("PUT", BUCKET, {"labels": {"a": "b"}, **resource}),
    ):
        answer = ask(method, target, body)
        assert answer.status == 400
        assert answer.json["error"]["errors"][0]["reason"] == "notSupported"
        assert name in answer.json["error"]["message"]
    assert ask("GET", "/storage/v1/b/other").status == 404
    assert "labels" not in ask("GET", BUCKET).json


def test_unsupported_bucket_properties_are_accepted_with_their_default_values(ask: Ask) -> None:
    """Clients send such defaults automatically, or when they write a resource back after reading it."""
    nothing: dict[str, Any] = {
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
        "autoclass": {"enabled": False},
        "rpo": "DEFAULT",
        "retentionPolicy": None,
        "encryption": {},
        "lifecycle": {"rule": []},
        "cors": [],
        "hierarchicalNamespace": {"enabled": False},
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": False},
            "publicAccessPrevention": "inherited",
        },
        "defaultEventBasedHold": False,
        "versioning": {"enabled": False},
    }
    made = ask("POST", "/storage/v1/b?project=p", {"name": "other", **nothing})
    assert made.status == 200
    read = ask("GET", "/storage/v1/b/other").json
    assert read["softDeletePolicy"] == {"retentionDurationSeconds": "0"}
    assert read["iamConfiguration"]["uniformBucketLevelAccess"] == {"enabled": True}
    assert not read.keys() & {"autoclass", "encryption", "lifecycle", "cors"}
    for method in ("PATCH", "PUT"):
        assert ask(method, "/storage/v1/b/other", {**read, "labels": {"a": "b"}}).status == 200


@pytest.mark.parametrize(
    "resource",
    [
        {"retention": {"mode": "Locked", "retainUntilTime": "2030-01-01T00:00:00Z"}},
        {"kmsKeyName": "k"},
        {"acl": [{"entity": "allUsers", "role": "READER"}]},
        {"contexts": {"custom": {"a": {"value": "b"}}}},
    ],
    ids=lambda resource: next(iter(resource)),
)
def test_error_names_the_unsupported_object_property(ask: Ask, resource: dict[str, Any]) -> None:
    put_object(ask, "x", b"content")
    composed = {"sourceObjects": [{"name": "x"}], "destination": resource}
    for method, target, body in (
        ("PATCH", f"{ITEM}x", resource),
        ("PUT", f"{ITEM}x", resource),
        ("POST", f"{UPLOAD}?uploadType=resumable&name=y", resource),
        ("POST", f"{ITEM}x/rewriteTo/b/bucket/o/y", resource),
        ("POST", f"{ITEM}y/compose", composed),
    ):
        answer = ask(method, target, body)
        assert (answer.status, *resource) == (400, *(n for n in resource if n in str(answer.body)))
    assert ask("GET", f"{ITEM}y").status == 404


def test_compose_request_that_deletes_the_source_objects_is_rejected(ask: Ask) -> None:
    put_object(ask, "x", b"content")
    body = {"sourceObjects": [{"name": "x"}], "deleteSourceObjects": True}
    answer = ask("POST", f"{ITEM}y/compose", body)
    assert (answer.status, b"deleteSourceObjects" in answer.body) == (400, True)
    assert ask("GET", f"{ITEM}y").status == 404
    assert ask("POST", f"{ITEM}y/compose", {**body, "deleteSourceObjects": False}).status == 200


@pytest.mark.parametrize("header", ["x-goog-encryption-key", "x-goog-copy-source-encryption-key"])
def test_customer_supplied_encryption_keys_are_rejected(ask: Ask, header: str) -> None:
    """If the service ignored the key, the content would be unencrypted without the owner's knowledge."""
    put_object(ask, "x", b"content")
    key = {header.replace("-", "_"): "secret"}
    for method, target in (
        ("POST", f"{UPLOAD}?uploadType=media&name=y"),
        ("GET", f"{ITEM}x?alt=media"),
        ("POST", f"{ITEM}x/rewriteTo/b/bucket/o/y"),
        ("PUT", "/bucket/y"),
    ):
        answer = ask(method, target, b"", **key)
        assert answer.status == 400
        assert header in answer.body.decode()
    for query in ("kmsKeyName=k", "destinationKmsKeyName=k", "filter=f"):
        assert ask("POST", f"{UPLOAD}?uploadType=media&name=y&{query}", b"y").status == 400
    assert ask("POST", "/storage/v1/b?enableObjectRetention=true", {"name": "other"}).status == 400
    assert ask("GET", f"{ITEM}y").status == 404


@pytest.mark.parametrize("name", ["predefinedAcl", "destinationPredefinedAcl"])
def test_public_predefined_acl_is_rejected_and_named_in_the_error(ask: Ask, name: str) -> None:
    """If the service ignored the ACL, the caller would consider the object public. Private ACLs are
    accepted."""
    put_object(ask, "x", b"content")
    for method, target in (
        ("POST", f"{UPLOAD}?uploadType=media&name=y"),
        ("POST", f"{ITEM}x/rewriteTo/b/bucket/o/y?a=b"),
        ("PATCH", f"{ITEM}x?a=b"),
        ("PATCH", f"{BUCKET}?a=b"),
    ):
        answer = ask(method, f"{target}&{name}=publicRead", b"")
        assert answer.status == 400
        assert f"{name}=publicRead" in answer.json["error"]["message"]
    assert ask("GET", f"{ITEM}y").status == 404
    for acl in ("private", "projectPrivate", "bucketOwnerFullControl"):
        assert ask("POST", f"{UPLOAD}?uploadType=media&name=y&{name}={acl}", b"y").status == 200
    made = ask("POST", "/storage/v1/b?predefinedDefaultObjectAcl=publicRead", {"name": "other"})
    assert made.status == 400
    assert ask("PUT", "/bucket/z", b"", x_goog_acl="public-read").status == 400
    matched = {"x_goog_copy_source": "bucket/x", "x_goog_copy_source_if_generation_match": "1"}
    assert ask("PUT", "/bucket/z", b"", **matched).status == 400
    assert ask("PUT", "/bucket/z", b"", x_goog_acl="project-private").status == 200


def test_conditional_reads_return_200_304_or_412_depending_on_the_entity_tag(ask: Ask) -> None:
    put_object(ask, "x", b"one")
    for target in (f"{ITEM}x", BUCKET):
        tag = ask("GET", target).json["etag"]
        for good in (tag, f'"{tag}"', f"kittens, {tag}", "*"):
            assert ask("GET", target, if_match=good).status == 200
            assert ask("GET", target, if_none_match=good).status == 304
        assert ask("GET", target, if_match="kittens").status == 412
        assert ask("GET", target, if_none_match="kittens").status == 200


def test_enforced_public_access_prevention_disables_grants_to_all_users(ask: Ask, store: ObjectStore) -> None:
    public = {"bindings": [{"role": "roles/storage.objectViewer", "members": ["allUsers"]}]}
    assert ask("PUT", f"{BUCKET}/iam", public).status == 200

    def is_open() -> bool:
        access = store.catalog.access("bucket")
        assert access is not None
        return is_allowed(UNKNOWN, "storage.objects.get", access)

    assert is_open()
    enforced = {"iamConfiguration": {"publicAccessPrevention": "enforced"}}
    assert ask("PATCH", BUCKET, enforced).json["iamConfiguration"] == {
        "uniformBucketLevelAccess": {"enabled": True},
        "publicAccessPrevention": "enforced",
    }
    assert not is_open()
    assert ask("PUT", f"{BUCKET}/iam", public).status == 412
    wrong = {"iamConfiguration": {"publicAccessPrevention": "perhaps"}}
    assert ask("PATCH", BUCKET, wrong).status == 400
