"""The console's paths and what its pages say of the service: the part of the console that is loaded before
somebody opens it."""

from typing import Final

from msgspec import Struct

FIRST_SEGMENTS: Final = frozenset(
    {
        *("", "assets", "buckets", "datasets", "events", "experiments", "jobs", "login", "logout"),
        *("models", "nodes", "queue", "quotas", "settings", "signed-in", "studies", "submit"),
    }
)
"""First segments of the paths that belong to the console."""


class Facts(Struct, frozen=True):
    """What pages say of the service: its version, defaults and address."""

    version: str
    #: The service's default project, region and bucket.
    project: str
    region: str
    bucket: str
    #: The URL at which browsers and clients reach it.
    address: str

    def login_link(self, code: str) -> str:
        """Return an address that signs a browser in once, by a code of `access.sessions`."""
        return f"{self.address}/login?code={code}"
