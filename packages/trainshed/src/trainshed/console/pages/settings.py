"""The page of the service: its status, its settings with their sources, and the names of secrets."""

from collections.abc import Sequence
from itertools import groupby
from typing import Final

from trainshed.console.visits import View, Visit
from trainshed.wire.trainshed_v1.jobs import Status
from trainshed.wire.trainshed_v1.secrets import SecretList
from trainshed.wire.trainshed_v1.settings import Setting, SettingList

SOURCES: Final = (("", "All"), ("changed", "Changed"), ("default", "Default"))


async def page(visit: Visit) -> View:
    """`/settings[?show=changed|default][&search=TEXT]`: the service, and the settings that match."""
    status = await visit.get(Status, "status")
    project, _ = visit.place
    secrets = (
        await visit.get_if_allowed(SecretList, "secrets", project=project) if project else None
    )
    listed = await visit.get_if_allowed(SettingList, "settings")
    return View(
        "Settings",
        "settings.html",
        {
            "status": status,
            "secrets": secrets or SecretList(),
            "groups": grouped(
                listed.settings if listed else (), visit.query("show"), visit.query("search")
            ),
            "sources": SOURCES,
            "is_allowed": listed is not None,
        },
        place="settings",
    )


def grouped(
    settings: Sequence[Setting], show: str, text: str
) -> list[tuple[str, Sequence[Setting]]]:
    """Return the settings to show, by their groups. `show`: "changed", "default" or "" for all; `text`: words
    that have to occur in the name, the description or the value."""
    words = text.lower().split()
    rows = [
        setting
        for setting in settings
        if (not show or (setting.source == "default") == (show == "default"))
        and all(word in f"{setting.name} {setting.about} {setting.value}".lower() for word in words)
    ]
    return [(name, list(members)) for name, members in groupby(rows, lambda row: row.group)]
