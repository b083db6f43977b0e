"""Records of secrets, whose values are never read back."""

from trainshed.wire.trainshed_v1.record import Record


class SecretVersion(Record, frozen=True):
    """One version of a secret."""

    version: int = 0
    created: str = ""
    #: "" = it was not given to any program yet.
    last_used: str = ""


class Secret(Record, frozen=True):
    """A secret without its value, which no method returns."""

    name: str = ""
    #: When the newest version was stored.
    created: str = ""
    #: The last use of any version.
    last_used: str = ""
    #: Newest first.
    versions: tuple[SecretVersion, ...] = ()


class SecretList(Record, frozen=True):
    """A project's secrets, by name."""

    project: str = ""
    secrets: tuple[Secret, ...] = ()


class SecretValue(Record, frozen=True):
    """A new version of a secret, to be stored."""

    #: "" = the service's default project.
    project: str = ""
    name: str = ""
    value: str = ""


class StoredSecret(Record, frozen=True):
    """A version that was stored."""

    project: str = ""
    name: str = ""
    version: int = 0
    created: str = ""
