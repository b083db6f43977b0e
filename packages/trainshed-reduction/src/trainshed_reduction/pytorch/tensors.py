"""Tensors as the bytes that travel: which element types, which reductions, which memory."""

from __future__ import annotations

from typing import Optional

import torch
import torch.distributed as dist

from trainshed_reduction.wire import DType, Reduction

DTYPES = {
    torch.float32: DType.FLOAT32,
    torch.float64: DType.FLOAT64,
    torch.float16: DType.FLOAT16,
    torch.bfloat16: DType.BFLOAT16,
    torch.int32: DType.INT32,
    torch.int64: DType.INT64,
}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def reduction_of(operation: object, dtype: torch.dtype) -> Optional[Reduction]:
    """Return the reduction; None if reducers do not do it. `operation`: of AllreduceOptions."""
    # One by one and by ==: a ReduceOp equals a RedOpType, but `in` and hashes do not find that.
    if operation == dist.ReduceOp.SUM:
        return Reduction.SUM
    if operation == dist.ReduceOp.AVG and dtype.is_floating_point:
        return Reduction.AVERAGE
    return None


def is_served(tensor: torch.Tensor, smallest: int) -> bool:
    """Whether it is dense, contiguous, of a type that reducers know, and of at least `smallest` bytes.

    All ranks must answer alike, and do if they call with alike tensors: nothing here depends on the rank."""
    return (
        type(tensor) in _PLAIN
        and tensor.dtype in DTYPES
        and tensor.numel() * tensor.element_size() >= max(1, smallest)
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and tensor.is_contiguous()
        and not tensor.is_neg()
    )


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the memory of a contiguous CPU tensor, which the view keeps alive."""
    flat = tensor.detach().view(-1).view(torch.uint8)
    return memoryview(flat.numpy())
