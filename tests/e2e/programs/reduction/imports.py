"""`import torch` in any environment. With an argument: with an unexpected PyTorch afterwards."""

import os
import sys

import torch

assert torch.ones(2).sum().item() == 2
if len(sys.argv) > 1:
    from torch.distributed import distributed_c10d

    from trainshed_reduction.autoload import autoload

    os.environ.update(TRAINSHED_REDUCERS="127.0.0.1:1", TRAINSHED_REDUCTION="off")
    autoload()
    assert "trainshed_reduction.pytorch" not in sys.modules
    os.environ.update(TRAINSHED_REDUCTION="auto", TRAINSHED_REDUCTION_TOKEN="any")
    del distributed_c10d._new_process_group_helper
    autoload()
