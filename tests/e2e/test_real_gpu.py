"""Jobs on a real GPU through the whole service (spec/machines#gpus): one has it, is seen to use it, and the
next waits for it.

Skipped where there is none. Programs run in the Python of TRAINSHED_TEST_TORCH_PYTHON.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import torch_runtime
from tests.e2e.running import SKLEARN, custom_job, running, submit, worker_pool
from tests.e2e.stories import until
from trainshed.core.catalog.accelerators import allowed
from trainshed.core.catalog.machines import machine_types
from trainshed.core.names import Api
from trainshed.engines.launch.devices import Device, NvmlDevices

_TRAINS = """
import json, sys, time
import torch
assert torch.cuda.device_count() == 1, torch.cuda.device_count()
model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(4096, 4096, device="cuda")
y = x[:, :1] * 2
end, step = time.monotonic() + 5, 0
while time.monotonic() < end:
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if step % 50 == 0:
        print(f"step {step} - loss: {loss.item():.4f}", flush=True)
    step += 1
print("trained", flush=True)
if len(sys.argv) > 1:
    open(sys.argv[1]).read()
"""

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def devices() -> tuple[Device, ...]:
    devices = NvmlDevices({}).find()
    if not devices:
        pytest.skip("no GPU: the driver's library (NVML) finds none on this machine")
    return devices


def _machine_with_one(accelerator: str) -> str:
    """The smallest machine type that can have one of these."""
    fitting = [
        machine
        for machine in machine_types().values()
        if 1 in allowed(machine, Api.VERTEX).get(accelerator, ())
    ]
    if not fitting:
        pytest.skip(f"no machine type has one {accelerator or 'GPU of this kind'}")
    return min(fitting, key=lambda machine: machine.vcpus).name


def test_a_gpu_is_used_by_one_job_and_waited_for_by_the_next(
    devices: tuple[Device, ...], data: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python, accelerator = torch_runtime.torch_python(), devices[0].accelerator
    monkeypatch.setenv("TRAINSHED_VISIBLE_PATHS", str(python.parents[1]))
    machine = _machine_with_one(accelerator)

    def training(*arguments: str) -> dict[str, Any]:
        program = {"imageUri": SKLEARN, "command": [str(python), "-c", _TRAINS, *arguments]}
        pool = worker_pool(machine=machine, containerSpec=program)
        pool["machineSpec"] |= {"acceleratorType": accelerator, "acceleratorCount": 1}
        return custom_job(pool)

    # The machine type's public CPUs and memory are more than many a machine has beside its GPU.
    node = ("--capacity", "strict", "--node-cpus", "1000", "--node-memory", "10000")
    with running(data, *node) as service:
        holders = [submit(service, training(str(gate))) for _ in devices]
        for holder in holders:
            next(line for line in service.follow(holder) if line.startswith("PEAK "))
        last = submit(service, training())
        waiting = next(view["waiting"] for view in service.watch(last) if view.get("waiting"))
        nodes = service.call("GET", "/trainshed/v1/nodes")
        gate.write_text("")
        assert {service.finish(job)["state"] for job in (*holders, last)} == {"SUCCEEDED"}
        usages = [service.call("GET", f"/trainshed/v1/jobs/{job}/usage") for job in holders]
    print(json.dumps([waiting, nodes, usages], indent=1))
