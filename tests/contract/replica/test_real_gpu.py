"""A replica on a real GPU (spec/machines#gpus): it sees its own and no other, and is seen to use it.

Skipped where there is none. With a torch that has CUDA in this interpreter one kernel runs as well.
"""

import json
from typing import Any

import pytest

from tests.contract.replica.conftest import Place
from trainshed.engines.launch.devices import (
    DeviceEdits,
    NvmlDevices,
    device_edits,
    find_driver,
)
from trainshed.replica import protocol
from trainshed.replica.observe import usage

_PROGRAM = """
import contextlib, ctypes, json, time
nvml, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_uint()
assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
uuids = []
for index in range(count.value):
    handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
        assert nvml.nvmlDeviceGetUUID(handle, text, 96) == 0
        uuids.append(text.value.decode())
answer = {"uuids": uuids, "torch": False}
with contextlib.suppress(ImportError):
    import torch
    answer["torch"] = torch.cuda.is_available()
if answer["torch"]:
    answer["count"] = torch.cuda.device_count()
    a = torch.ones(4096, 4096, device="cuda")
    until = time.monotonic() + 4
    while time.monotonic() < until:
        answer["sum"] = float((a @ a).sum() / 4096**3)
else:
    time.sleep(3)
print(json.dumps(answer))
"""


def _environ(edits: DeviceEdits) -> dict[str, str]:
    path = ":".join([*edits.path, "/usr/local/bin:/usr/bin:/bin"])
    libraries = ":".join(edits.library_path)
    environ = {"PATH": path, **edits.environ}
    return environ | ({"LD_LIBRARY_PATH": libraries} if libraries else {})


@pytest.mark.gpu
def test_a_replica_uses_its_own_gpu_and_is_seen_to(place: Place) -> None:
    gpus = NvmlDevices({}).find()
    if not gpus:
        pytest.skip("no GPU: the driver's library (NVML) finds none on this machine")
    private = place.level != protocol.LEVEL_SESSION
    last_gpu = gpus[-1]
    edits = device_edits(last_gpu.word, gpus, find_driver(), private=private, image=False)
    shown = {"devices": edits.devices, "gpus": edits.gpus}
    line = place.python(_PROGRAM, environ=_environ(edits), usage_every=1.0, **shown)
    record = line.record()
    assert record["exit_code"] == 0, record["tail"]
    answers: dict[str, Any] = json.loads(place.texts()[-1])
    if private and last_gpu.part is None:
        assert answers["uuids"] == [last_gpu.uuid]
    if answers["torch"]:
        assert (answers["count"], answers["sum"]) == (1, 1.0)
    lines = (place.logs / usage.FILE).read_text().splitlines()
    ((busy, used, total, peak),) = json.loads(lines[-1])["gpus"]
    assert 0 <= used <= peak <= total == last_gpu.memory_bytes
    if answers["torch"] and last_gpu.part is None:
        assert busy > 0.5 and peak > 3 * 4096 * 4096 * 4
