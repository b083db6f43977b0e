"""What pages say of the service, and where they are: what is known of the console before it is loaded."""

from typing import Final

from msgspec import Struct

FIRST_SEGMENTS: Final = frozenset(
    {
        *("", "assets", "buckets", "datasets", "events", "experiments", "jobs", "login", "logout"),
        *("models", "nodes", "queue", "quotas", "settings", "studies", "submit"),
    }
)
"""Of the paths that are the console's."""


class Facts(Struct, frozen=True):
    """What pages say of the service."""

    version: str
    project: str
    region: str
    bucket: str
    #: Where browsers and clients reach it.
    address: str
    #: How its own commands are called here.
    command: str = "trainshed"

    def login_link(self, code: str) -> str:
        """An address that signs a browser in once, by a code of `access.sessions`."""
        return f"{self.address}/login?code={code}"
