"""One Kubernetes cluster for the tests of a run."""

from collections.abc import Iterator

import pytest

from tests.kubernetes.lab import KubernetesLab, why_not


@pytest.fixture(scope="session")
def kubernetes_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesLab]:
    """Its nodes are ready and empty; a test leaves them so."""
    reason = why_not()
    if reason:
        pytest.skip(f"NOT TESTED: the Kubernetes engine: {reason}")
    with KubernetesLab(tmp_path_factory.mktemp("kubernetes")) as lab:
        yield lab
