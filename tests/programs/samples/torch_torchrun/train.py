import os

import torch
from torch import distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, local_rank, world = dist.get_rank(), int(os.environ["LOCAL_RANK"]), dist.get_world_size()
print(f"rank {rank} of {world}, local rank {local_rank}", flush=True)
torch.manual_seed(rank)
model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
for step in range(100):
    x = torch.rand(32, 3)
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
total = loss.detach().clone()
dist.all_reduce(total)
if rank == 0:
    print("mean loss", total.item() / world)
    target = os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/")
    os.makedirs(target, exist_ok=True)
    torch.jit.trace(model.module.eval(), torch.rand(1, 3)).save(target + "/model.pt")
dist.destroy_process_group()
