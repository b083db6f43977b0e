"""GPUs of replicas, with devices that are only said to be there (spec/queue#capacity; spec/machines#gpus)."""

from tests.contract.engines.conftest import PRIMARY, House
from tests.fake_devices import FakeDevices
from trainshed.core.names import JobUid, ReplicaId

WORKERS = [ReplicaId(1, index) for index in range(2)]
SHOW = ("sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES]"')
NOTHING_SAID = (("CUDA_VISIBLE_DEVICES", ""),)


async def shown(house: House, uid: JobUid, replica: ReplicaId) -> object:
    plan = house.plan(uid, *SHOW, replica=replica, environ=NOTHING_SAID)
    await house.engine.launch([plan])
    await house.exit(uid, replica)
    return house.texts(uid, replica)[0]


async def test_each_replica_sees_gpus_of_its_own_also_after_a_restart(house: House) -> None:
    """spec/machines#gpus: assigned GPUs only."""
    await house.restart(devices=FakeDevices("Tesla T4", "Tesla T4"))
    (node,) = await house.engine.capacity()
    assert node.accelerators == (("NVIDIA_TESLA_T4", 2),)
    uid, other = house.job(), JobUid(99)
    slots = await house.allocate(uid, WORKERS, accelerators=1)
    assert [slot.devices for slot in slots] == ["0", "1"]
    await house.restart()
    assert await house.allocate(uid, WORKERS, accelerators=1) == slots
    assert [await shown(house, uid, worker) for worker in WORKERS] == ["[0]", "[1]"]
    await house.allocate(other, [PRIMARY])
    assert await shown(house, other, PRIMARY) == "[]"
