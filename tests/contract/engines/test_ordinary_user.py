"""The suite once more as a user without rights, where the tests run as root: what depends on whose the
programs are."""

from pathlib import Path

import pytest

from tests.contract.ordinary_user import as_root_only, run_as_nobody

_LEVELS = "isolation or roots or slots or not without-namespaces"


@as_root_only
@pytest.mark.soak  # tests/engines runs as such a user; tests/e2e/test_hostile.py attacks his service.
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(("isolation", "slots", "stop"), id="what hides and limits"),
        pytest.param(
            ("exits", "roots", "terminals", "autopsies", "reducers", "warm_starts"), id="all else"
        ),
    ],
)
def test_the_suite_as_an_ordinary_user(chosen: tuple[str, ...]) -> None:
    """spec/program#isolation: root or not. Without namespaces only what hides or limits something; the
    conformance suite (`tests/engines`) runs with and without them as such a user, too."""
    here = Path(__file__).parent
    run_as_nobody("-k", _LEVELS, *(str(here / f"test_{name}.py") for name in chosen))
