"""ML units: what `ml` v1 reports as consumed by a finished job (facts/machines#ml-units).

Prices of the public table of November 2019, in units per node and hour.
"""

from collections.abc import Iterable

from trainshed.core.catalog.tables import table

MINUTE = 60 * 10**9
_MINIMUM_NODE_MINUTES = 10


def units_per_hour(
    machine_type: str, accelerator_type: str = "", accelerator_count: int = 0
) -> float | None:
    """Units that one node costs in an hour, or None where the table has no price for it.

    A legacy type's price includes its accelerators.
    """
    data = table("ml_units")
    if machine_type in data["legacy"]:
        return data["legacy"][machine_type]
    base = data["computeEngine"].get(machine_type)
    if base is None or accelerator_count == 0:
        return base
    device = data["accelerators"].get(accelerator_type)
    return None if device is None else base + device * accelerator_count


def consumed_units(nodes: Iterable[float], running: int) -> float:
    """Units of a job whose `nodes` (units per hour each) ran for `running` nanoseconds.

    Whole minutes, at least ten node-minutes for the job; two decimals, as the service was seen to round.
    """
    rates = list(nodes)
    minutes = -(-max(running, 0) // MINUTE)
    node_minutes = minutes * len(rates)
    if node_minutes == 0:
        return 0.0
    units = sum(rates) * minutes / 60
    return round(units * max(1.0, _MINIMUM_NODE_MINUTES / node_minutes), 2)
