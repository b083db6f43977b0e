"""The settings in force, and where each one comes from."""

from trainshed.api.trainshed_v1.call import JsonCall
from trainshed.wire.trainshed_v1.settings import SettingList


async def list_(call: JsonCall) -> SettingList:
    """`GET /trainshed/v1/settings`: list every setting with its value, where that came from, and what it
    means. Secrets are masked."""
    return SettingList(settings=call.services.settings.configured)
