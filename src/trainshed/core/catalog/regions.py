"""Regions in which each public API trains, and what accelerators Vertex lists there."""

from trainshed.core.catalog.tables import table
from trainshed.core.names import Api


def regions(api: Api) -> tuple[str, ...]:
    """Region names, sorted."""
    return tuple(table("regions")[api.value])


def vertex_accelerators(region: str) -> tuple[str, ...]:
    """Accelerator names that Vertex lists for `region`; empty for one it lists none for."""
    return tuple(table("regions")["vertexAccelerators"].get(region, ()))
