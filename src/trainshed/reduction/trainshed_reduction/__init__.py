"""Workers' and reducers' side of the Reduction Server: sums tensors of all workers on reducers.

PyTorch programs need not import it (`autoload`). `allreduce` is for arrays of NumPy and whatever shares
memory with them.
"""


def __getattr__(name: str) -> object:
    # Late: reducers and `import torch` need none of it.
    if name == "allreduce":
        from trainshed_reduction.arrays import allreduce

        return allreduce
    raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
