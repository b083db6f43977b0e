"""Records of the service's settings that are in force."""

from trainshed.wire.trainshed_v1.record import Record


class Setting(Record, frozen=True):
    """One setting. Parts of its value that could be a secret are shown as `(redacted)`."""

    #: Its key in the configuration file.
    name: str = ""
    #: As text: tables as JSON, flags as `true` and `false`; "" = empty.
    value: str = ""
    #: The default, in the same form.
    default: str = ""
    #: "default", "file", "environment" or "option".
    source: str = "default"
    #: The file, the variable or the option; "" = the default is in force.
    place: str = ""
    #: What it does, in a line.
    about: str = ""
    #: Its group, such as "Capacity".
    group: str = ""


class SettingList(Record, frozen=True):
    """All settings, by group."""

    settings: tuple[Setting, ...] = ()
