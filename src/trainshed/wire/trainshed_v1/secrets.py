"""Secrets, which are never read back."""

from trainshed.wire.trainshed_v1.record import Record


class SecretVersion(Record, frozen=True):
    """One version of a secret."""

    version: int = 0
    created: str = ""
    #: "" = no program was given it yet.
    last_used: str = ""


class Secret(Record, frozen=True):
    """A secret without its value, which no method gives back."""

    name: str = ""
    #: Of the newest version.
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
    """A secret's new version to be stored."""

    #: "" = the service's own.
    project: str = ""
    name: str = ""
    value: str = ""


class StoredSecret(Record, frozen=True):
    """A version that was stored."""

    project: str = ""
    name: str = ""
    version: int = 0
    created: str = ""


class UnopenedSecret(Record, frozen=True):
    """A version that could not be opened."""

    project: str = ""
    name: str = ""
    version: int = 0


class KeyRotation(Record, frozen=True):
    """What came of a change of the key."""

    #: The new key's fingerprint.
    key: str = ""
    #: How many versions were sealed with it.
    sealed: int = 0
    #: Those that could not be opened and stay as they are.
    left: tuple[UnopenedSecret, ...] = ()
