"""The whole suite once more as a user without rights, where the tests run as root."""

from pathlib import Path

from tests.contract.ordinary_user import as_root_only, run_as_nobody


@as_root_only
def test_the_suite_as_an_ordinary_user() -> None:
    """SPEC §3: root or not."""
    run_as_nobody(str(Path(__file__).parent))
