"""The library of the Reduction Server: workers send tensors to reducers, which return their sums.

PyTorch programs do not import it. `autoload` does.
"""
