"""Settings of the service, as they are in force."""

from trainshed.wire.trainshed_v1.record import Record


class Setting(Record, frozen=True):
    """One setting. What in its value could be a secret is told as `(redacted)`."""

    #: As the key in the file.
    name: str = ""
    #: As text: tables as JSON, flags as `true` and `false`; "" = empty.
    value: str = ""
    #: The same of what holds if nobody sets it.
    default: str = ""
    #: "default", "file", "environment" or "option".
    source: str = "default"
    #: The file, the variable or the option; "" = the default holds.
    place: str = ""
    #: What it is, in a line.
    about: str = ""
    #: What it belongs to, such as "Capacity".
    group: str = ""


class SettingList(Record, frozen=True):
    """All settings, by what they belong to."""

    settings: tuple[Setting, ...] = ()
