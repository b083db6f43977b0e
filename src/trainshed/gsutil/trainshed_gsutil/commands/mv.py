"""`mv` works as `cp -r`, and removes each source as soon as it has been copied."""

from trainshed_gsutil.commands import cp
from trainshed_gsutil.commands.context import Context


def run(context: Context) -> int:
    return cp.transfer(context, moving=True)
