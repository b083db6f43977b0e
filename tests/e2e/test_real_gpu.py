"""Jobs on a real GPU through the complete service (spec/machines#gpus): one uses it, its usage is measured,
and the next waits for it. Programs run in the Python of TRAINSHED_TEST_TORCH_PYTHON.
"""

from pathlib import Path
from typing import Any

import pytest

from tests import torch_runtime
from tests.e2e.job_history import until
from tests.e2e.running import SKLEARN, custom_job, running, submit, worker_pool
from trainshed.core.catalog.machines import allowed_accelerators, machine_types
from trainshed.core.names import Api
from trainshed.engines.launch.devices import find_devices

_TRAINS = """
import sys, time, torch
assert torch.cuda.device_count() == 1
a = torch.ones(8192, 8192, device="cuda")
end = time.monotonic() + 5
while time.monotonic() < end:
    (a @ a).sum().item()
print("trained", flush=True)
if len(sys.argv) > 1:
    open(sys.argv[1]).read()
"""


@pytest.mark.gpu
def test_gpu_is_used_by_one_job_while_the_next_waits(
    data: Path, gate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = find_devices({})
    if not devices:
        pytest.skip("no GPU: the driver's library (NVML) finds none on this machine")
    python, accelerator = torch_runtime.torch_python(), devices[0].accelerator
    kinds = {kind.name: allowed_accelerators(kind, Api.VERTEX) for kind in machine_types().values()}
    machine = next((name for name in kinds if 1 in kinds[name].get(accelerator, ())), "")
    if not machine:
        pytest.skip(f"no machine type has one {accelerator or 'GPU of this kind'}")
    monkeypatch.setenv("TRAINSHED_VISIBLE_PATHS", str(python.parents[1]))

    def training(*arguments: str) -> dict[str, Any]:
        program = {"imageUri": SKLEARN, "command": [str(python), "-c", _TRAINS, *arguments]}
        pool = worker_pool(machine=machine, containerSpec=program)
        pool["machineSpec"] |= {"acceleratorType": accelerator, "acceleratorCount": 1}
        return custom_job(pool)

    # The machine type's public CPUs and memory exceed those of many machines with a GPU.
    node = ("--node-cpus", "1000", "--node-memory", "10000")
    with running(data, "--capacity", "strict", *node) as service:
        holders = [submit(service, training(str(gate))) for _ in devices]
        for holder in holders:
            until(service.follow(holder), "trained")
        last = submit(service, training())
        waiting = next(view["waiting"] for view in service.watch(last) if view.get("waiting"))
        (local,) = service.call("GET", "/trainshed/v1/nodes")["nodes"]
        gate.write_text("")
        assert {service.finish(job)["state"] for job in (*holders, last)} == {"SUCCEEDED"}
        usages = [service.call("GET", f"/trainshed/v1/jobs/{job}/usage") for job in holders]
    assert waiting["message"].startswith(f"needs 1 {accelerator}, ")
    assert [gpus["used"] for gpus in local["accelerators"]] == [len(devices)]
    used = [gpu for usage in usages for replica in usage["replicas"] for gpu in replica["gpus"]]
    assert {gpu["uuid"] for gpu in used} == {device.uuid for device in devices}
    assert all(gpu["meanBusy"] > 0.1 and gpu["peakMemoryBytes"] > 1 << 29 for gpu in used)
