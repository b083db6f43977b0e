"""The settings in force: what they are, and who said so."""

from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.wire.trainshed_v1.settings import SettingList


async def list_(call: JsonCall) -> SettingList:
    """`GET /trainshed/v1/settings`: every setting with its value, where that came from, and what it is.
    Secrets are masked."""
    return SettingList(settings=call.services.settings.configured)
