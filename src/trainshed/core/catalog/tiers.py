"""Scale tiers of `ml` v1: the replicas that each predefined tier stands for (facts/machines#tiers)."""

import functools
from dataclasses import dataclass

from trainshed.core.catalog.tables import table

CUSTOM = "CUSTOM"
DEFAULT = "BASIC"
"""The enum's zero value: what a request that names no tier gets."""


@dataclass(frozen=True, slots=True)
class TierPool:
    """One pool of a predefined tier; `accelerator_type` is "" where it has none."""

    position: int
    machine_type: str
    count: int
    accelerator_type: str = ""
    accelerator_count: int = 0


@functools.cache
def predefined_tiers() -> dict[str, tuple[TierPool, ...]]:
    """Pools of every tier except CUSTOM, ascending by position."""
    return {
        name: tuple(
            TierPool(position, machine, count, accelerator or "", devices or 0)
            for position, machine, count, accelerator, devices in pools
        )
        for name, pools in table("tiers")["tiers"].items()
    }
