"""Simulated GPUs."""

from trainshed.engines.launch.devices import Device


def fake_devices(*products: str) -> tuple[Device, ...]:
    """Return the inventory of a machine with these GPUs."""
    return tuple(
        Device(index, f"GPU-{index:08x}", product, 16 << 30) for index, product in enumerate(products)
    )
