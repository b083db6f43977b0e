"""Tests of corrected requirements of packages (facts/experiments#autologging)."""

import pytest

from trainshed.runtimes.archives import missing_requirements

_ASKS = "Requires-Dist: google-cloud-aiplatform[autologging]==2.7.0"


@pytest.mark.parametrize(
    "metadata",
    [
        [_ASKS],
        ["Name: a\nRequires-Dist: pandas", f"Name: b\n{_ASKS}\nRequires-Dist: mlflow-export"],
        ["Requires-Dist: Google_Cloud_AIPlatform [autologging,ray] (>=1.38)"],
    ],
)
def test_package_that_requires_vertex_autologging_gets_an_mlflow_below_version_3(metadata: list[str]) -> None:
    assert missing_requirements(metadata) == ("mlflow<3",)


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        ["Requires-Dist: google-cloud-aiplatform==2.7.0"],
        ["Requires-Dist: mlflow"],
        [_ASKS, "Requires-Dist: mlflow (==1.27.0)"],
        [f"{_ASKS}\nRequires-Dist: mlflow[extras]>=3"],
    ],
)
def test_specified_mlflow_version_is_kept(metadata: list[str]) -> None:
    assert missing_requirements(metadata) == ()
