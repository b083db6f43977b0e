"""What clients do, and programs that report how far they are, on a Slurm cluster: the very tests of the local
engine (e2e/test_sdk.py, e2e/test_progress.py), over a service whose replicas run on the lab's nodes."""

import pytest

from tests.e2e import test_progress as of_progress
from tests.e2e import test_sdk as of_sdk
from tests.e2e.conftest import commons
from tests.e2e.running import Service
from tests.slurm.adopting import adopt

IN_SHORT = {"test_submit_then_cancel_then_delete"}
"""The others take builds of packages, and the SDK's own pauses of five seconds."""


__all__ = ["commons"]


@pytest.fixture(scope="module")
def service(slurm_service: Service) -> Service:
    return slurm_service


adopt(globals(), of_sdk, at_length={name for name in vars(of_sdk) if name not in IN_SHORT})
adopt(globals(), of_progress)
