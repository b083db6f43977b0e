"""Kept allocations: whether they fit on a node beside what is wanted there."""

import pytest

from trainshed.core.capacity import OthersUse
from trainshed.engines.port import Node
from trainshed_cluster.remote.cluster import NodeNeed
from trainshed_cluster.remote.kept_holds import fits

T4 = "NVIDIA_TESLA_T4"
NODE = Node("a", 16, 1000, ((T4, 2),), OthersUse(4, 200, ((T4, 1),)))


def need(vcpus: float = 1.0, memory: int = 1, gpus: int = 0) -> NodeNeed:
    return NodeNeed("a", 1, vcpus, memory, gpus, T4 if gpus else "")


@pytest.mark.parametrize(
    ("needs", "is_enough"),
    [
        ([need(6), need(6)], True),
        ([need(6), need(6.5)], False),  # Slurm gives whole CPUs.
        ([need(0), need(11), need(0)], False),  # And one at least.
        ([need(memory=400), need(memory=400)], True),
        ([need(memory=400), need(memory=401)], False),
        ([need(gpus=1), need()], True),
        ([need(gpus=1), need(gpus=1)], False),
    ],
)
def test_what_fits_beside_what_others_have(needs: list[NodeNeed], is_enough: bool) -> None:
    assert fits(NODE, needs) is is_enough
