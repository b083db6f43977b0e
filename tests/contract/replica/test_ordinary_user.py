"""What needs rights over the program's processes, once more as a user without any (spec/program#isolation:
root or not)."""

from pathlib import Path

import pytest

from tests.contract.ordinary_user import as_root_only, run_as_nobody

CHOSEN = (
    "test_expel.py",
    "test_orders.py",
    "test_stall.py",
    "test_memory_limit.py",
    "test_own_root.py",
    "test_relay_peers.py",
)


@as_root_only
@pytest.mark.soak  # tests/engines has such a user, and test_hostile.py attacks his service.
def test_the_suite_as_an_ordinary_user() -> None:
    here = Path(__file__).parent
    run_as_nobody("-k", "not session", *(str(here / name) for name in CHOSEN), timeout=300)
