"""Names of the public services' hosts that this service answers for in programs."""

from typing import Final

from trainshed.core.catalog.regions import regions
from trainshed.core.names import Api

STORAGE: Final = ("storage.googleapis.com", "www.googleapis.com")
_DOMAIN: Final = "googleapis.com"
_OF_ALL_REGIONS: Final = ("aiplatform", "ml", "cloudresourcemanager", "logging")


def apis() -> tuple[str, ...]:
    """Hosts of the APIs: those of all regions, then each region's own."""
    return (
        *(f"{name}.{_DOMAIN}" for name in _OF_ALL_REGIONS),
        *(f"{region}-aiplatform.{_DOMAIN}" for region in regions(Api.VERTEX)),
        *(f"{region}-ml.{_DOMAIN}" for region in regions(Api.ML)),
    )
