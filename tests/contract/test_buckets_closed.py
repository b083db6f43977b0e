"""What programs closed to the service, where the service is no root."""

from tests.contract.ordinary_user import as_root_only, run_as_nobody


@as_root_only
def test_closed_files_as_an_ordinary_user() -> None:
    run_as_nobody("tests/unit/test_buckets_objects.py", "-k", "closed", timeout=120)
