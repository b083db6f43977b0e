"""The library of the Reduction Server's workers and reducers: sums tensors of all workers on reducers.

PyTorch programs need not import it (`autoload` does). `allreduce` is for NumPy arrays and whatever shares
memory with them.
"""


def __getattr__(name: str) -> object:
    # Imported late: neither reducers nor `import torch` need it.
    if name == "allreduce":
        from trainshed_reduction.arrays import allreduce

        return allreduce
    raise AttributeError("module {!r} has no attribute {!r}".format(__name__, name))
