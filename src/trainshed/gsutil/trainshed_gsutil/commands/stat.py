"""`stat` prints the properties of objects."""

from trainshed_gsutil import describing, urls
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.expansion import Expander


def run(context: Context) -> int:
    _, given = context.parsed("", at_least=1)
    status = 0
    for text in given:
        url = urls.parse(text)
        if not url.is_object:
            raise CommandFailure("The stat command only works with object URLs")
        found = list(Expander(context.storage).objects(url))
        for entry in found:
            for line in describing.lines(str(entry.url), entry.resource or {}):
                context.output.detail(line)
        if not found:
            context.output.error(f"No URLs matched: {text}")
            status = 1
    return status
