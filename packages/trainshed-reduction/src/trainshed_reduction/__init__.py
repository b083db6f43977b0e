"""The library of the Reduction Server. Workers send tensors to reducers, which return the sums of the
tensors. PyTorch programs do not import this package: `import torch` calls `autoload`."""
