"""GPUs that do not exist."""

from trainshed.engines.launch.devices import Device

_GIB = 1 << 30


class FakeDevices:
    """What a machine with these GPUs would find."""

    def __init__(self, *products: str, memory_bytes: int = 16 * _GIB) -> None:
        self._found = tuple(
            Device(index, f"GPU-{index:08x}", product, memory_bytes)
            for index, product in enumerate(products)
        )

    def find(self) -> tuple[Device, ...]:
        return self._found
