"""What `test_api_vertex` says over REST holds over gRPC: the same tests, sent through a real channel
(facts/resources#vertex)."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.contract.api.grpc_house import GrpcHouse
from tests.contract.api.test_api_vertex import (
    test_a_bucket_in_another_place_is_a_warning,
    test_a_cancelled_job,
    test_a_failed_job_carries_its_error,
    test_a_token_of_another_filter_is_refused,
    test_bad_list_requests,
    test_cancel_is_an_intent_and_may_be_repeated,
    test_cancel_of_a_finished_or_unknown_job_is_refused,
    test_create_answers_the_resource_and_get_answers_the_same,
    test_every_violation_is_named_at_once_and_nothing_is_stored,
    test_lists_filter_page_and_mask,
    test_locations,
    test_places_that_are_none,
    test_projects_and_locations_keep_jobs_apart,
    test_v1beta1_is_the_same,
    test_warnings_and_notices_stand_on_the_timeline,
)

pytestmark = pytest.mark.anyio

__all__ = [
    "test_a_bucket_in_another_place_is_a_warning",
    "test_a_cancelled_job",
    "test_a_failed_job_carries_its_error",
    "test_a_token_of_another_filter_is_refused",
    "test_bad_list_requests",
    "test_cancel_is_an_intent_and_may_be_repeated",
    "test_cancel_of_a_finished_or_unknown_job_is_refused",
    "test_create_answers_the_resource_and_get_answers_the_same",
    "test_every_violation_is_named_at_once_and_nothing_is_stored",
    "test_lists_filter_page_and_mask",
    "test_locations",
    "test_places_that_are_none",
    "test_projects_and_locations_keep_jobs_apart",
    "test_v1beta1_is_the_same",
    "test_warnings_and_notices_stand_on_the_timeline",
]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[GrpcHouse]:
    async with GrpcHouse(tmp_path).open() as opened:
        yield opened
