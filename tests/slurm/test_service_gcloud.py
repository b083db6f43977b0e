"""What people do with gcloud, on a Slurm cluster: the very tests of the local engine
(e2e/test_gcloud_vertex.py), over a service whose replicas run on the lab's nodes."""

import pytest

from tests.e2e import test_gcloud_vertex as of_gcloud
from tests.e2e.running import Service
from tests.slurm.adopting import adopt

IN_SHORT = {
    "test_create_by_flags_describe_and_list",
    "test_cancel",
    "test_stream_logs_shows_every_line_of_a_running_job_in_order",
}
"""Each gcloud takes most of a second of a processor, and refusals know of no engine."""


@pytest.fixture(scope="module")
def service(slurm_service: Service) -> Service:
    return slurm_service


adopt(globals(), of_gcloud, at_length={name for name in vars(of_gcloud) if name not in IN_SHORT})
