"""The library of the Reduction Server's workers and reducers: sums tensors of all workers on reducers.

PyTorch programs need not import it (`autoload` does).
"""
