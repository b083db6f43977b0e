import sys

import torch

for uri in sys.argv[1:]:
    model = torch.jit.load(uri.replace("gs://", "/gcs/"))
    print("LOADED", sum(tensor.numel() for tensor in model.parameters()), "parameters")
