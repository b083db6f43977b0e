"""Regions in which each public API trains, the accelerators that Vertex lists in each region, and the API
hosts that programs call."""

import functools
from typing import Final

from trainshed.core.catalog.tables import table
from trainshed.core.names import Api


def regions(api: Api) -> tuple[str, ...]:
    """Return the region names, sorted."""
    return tuple(table("regions")[api.value])


STORAGE: Final = ("storage.googleapis.com", "www.googleapis.com")
_DOMAIN: Final = "googleapis.com"
# Programs also call iamcredentials, because google-auth calls it automatically with the program's token.
_OF_ALL_REGIONS: Final = (
    "aiplatform",
    "ml",
    "bigquery",
    "cloudresourcemanager",
    "iamcredentials",
    "logging",
    "secretmanager",
)


@functools.cache
def apis() -> tuple[str, ...]:
    """Return the host names of the APIs: first the hosts for all regions, then each region's own hosts."""
    return (
        *(f"{name}.{_DOMAIN}" for name in _OF_ALL_REGIONS),
        *(f"{region}-aiplatform.{_DOMAIN}" for region in regions(Api.VERTEX)),
        *(f"{region}-ml.{_DOMAIN}" for region in regions(Api.ML)),
    )
