"""The private pool, the discovery documents, statuses (spec/invariants#private-pool,
facts/limits#error-texts)."""

import json
import sys
from typing import cast

import pytest
from google.protobuf import descriptor_pool

from tests.commands import execute
from trainshed.wire import pool

CUSTOM_JOB = "google.cloud.aiplatform.v1.CustomJob"


def test_public_message_types_are_not_registered_in_the_default_protobuf_pool() -> None:
    """spec/invariants#private-pool: the SDK registers the same files in the default pool."""
    script = (
        "from google.protobuf import descriptor_pool\n"
        "from trainshed.wire import pool\n"
        f"[pool.load(api) for api in pool.APIS]\n"
        "try:\n"
        f"    descriptor_pool.Default().FindMessageTypeByName({CUSTOM_JOB!r})\n"
        "except KeyError:\n"
        "    print('clean')\n"
    )
    done = execute(sys.executable, "-c", script, check=True)
    assert done.stdout.strip() == "clean"
    assert pool.pool() is not descriptor_pool.Default()


@pytest.mark.parametrize("api", ["ml_v1", "logging_v2"])
def test_discovery_documents_contain_no_descriptions(api: str) -> None:
    text = pool.discovery_document(api, "http://127.0.0.1:8080")
    document = json.loads(text)
    assert document["rootUrl"] == document["baseUrl"] == "http://127.0.0.1:8080/"
    assert b"enumDescriptions" not in text

    def longest(value: object) -> int:
        if isinstance(value, dict):
            return max((longest(inner) for inner in cast(dict[str, object], value).values()), default=0)
        if isinstance(value, list):
            return max((longest(inner) for inner in cast(list[object], value)), default=0)
        return value.count(" ") if isinstance(value, str) else 0

    assert longest(document) < 4
