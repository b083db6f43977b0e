"""Takes one step of gradient descent, and names the backends of `torch.distributed` that jobs rely on."""

import importlib

torch = importlib.import_module("torch")
for name in ("numpy", "pandas", "setuptools.build_meta", "google.cloud.storage", "hypertune"):
    importlib.import_module(name)

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = (model(torch.ones(4, 2)) - 1).pow(2).mean()
loss.backward()
optimizer.step()
assert torch.distributed.is_gloo_available()
assert torch.from_numpy(model.weight.detach().numpy()).shape == (1, 2)
