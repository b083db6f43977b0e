"""GPUs that do not exist."""

from trainshed.engines.launch.devices import Device


class FakeDevices:
    """What a machine with these GPUs would find."""

    def __init__(self, *products: str) -> None:
        self._found = tuple(
            Device(index, f"GPU-{index:08x}", product, 16 << 30)
            for index, product in enumerate(products)
        )

    def find(self) -> tuple[Device, ...]:
        return self._found
