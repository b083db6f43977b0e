"""GPUs that do not exist."""

from trainshed.engines.launch.devices import Device


def fake_devices(*products: str) -> tuple[Device, ...]:
    """What a machine with these GPUs would find."""
    return tuple(
        Device(index, f"GPU-{index:08x}", product, 16 << 30)
        for index, product in enumerate(products)
    )
