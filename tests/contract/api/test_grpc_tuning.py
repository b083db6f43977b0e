"""What the tests of tuning jobs, pipelines, models, persistent resources and operations say over REST holds
over gRPC: the same tests, sent through a real channel (facts/resources#pipelines)."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.contract.api.grpc_house import GrpcHouse
from tests.contract.api.test_models import (
    test_aliases_are_given_moved_and_taken_away,
    test_an_upload_is_done_at_once_and_the_first_version_is_the_default,
    test_lists_filter_order_and_page,
)
from tests.contract.api.test_operations import (
    test_a_check_of_early_stopping_says_whether_to_stop,
    test_cancel_ends_what_runs_and_is_too_late_for_the_rest,
    test_lists_are_of_one_parent_and_filter_by_done,
    test_wait_answers_as_soon_as_the_operation_is_done,
)
from tests.contract.api.test_persistent_resources import (
    test_a_resource_runs_from_the_moment_it_is_created,
    test_update_reboot_and_delete_are_finished_operations,
)
from tests.contract.api.test_training_pipelines import (
    test_a_finished_pipeline_names_its_model,
    test_create_stores_a_pipeline_and_its_custom_job,
    test_every_violation_is_named_at_once_and_nothing_is_stored,
    test_inputs_in_all_the_spellings_that_the_sdk_sends,
    test_lists_filter_by_state_and_task,
)
from tests.contract.api.test_tuning_jobs import (
    test_cancel_is_an_intent_and_too_late_for_one_that_is_over,
    test_lists_filter_and_page,
    test_trials_are_shown_in_the_order_of_their_numbers,
)

pytestmark = pytest.mark.anyio

__all__ = [
    "test_a_check_of_early_stopping_says_whether_to_stop",
    "test_a_finished_pipeline_names_its_model",
    "test_a_resource_runs_from_the_moment_it_is_created",
    "test_aliases_are_given_moved_and_taken_away",
    "test_an_upload_is_done_at_once_and_the_first_version_is_the_default",
    "test_cancel_ends_what_runs_and_is_too_late_for_the_rest",
    "test_cancel_is_an_intent_and_too_late_for_one_that_is_over",
    "test_create_stores_a_pipeline_and_its_custom_job",
    "test_every_violation_is_named_at_once_and_nothing_is_stored",
    "test_inputs_in_all_the_spellings_that_the_sdk_sends",
    "test_lists_are_of_one_parent_and_filter_by_done",
    "test_lists_filter_and_page",
    "test_lists_filter_by_state_and_task",
    "test_lists_filter_order_and_page",
    "test_trials_are_shown_in_the_order_of_their_numbers",
    "test_update_reboot_and_delete_are_finished_operations",
    "test_wait_answers_as_soon_as_the_operation_is_done",
]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncGenerator[GrpcHouse]:
    async with GrpcHouse(tmp_path).open() as opened:
        yield opened
