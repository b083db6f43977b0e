import sys

import torch

for uri in sys.argv[1:]:
    state = torch.load(uri.replace("gs://", "/gcs/"), weights_only=True)
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    print("LOADED", {name: tuple(tensor.shape) for name, tensor in state.items()})
