"""`compose` joins several objects into one."""

from trainshed_gsutil import properties, urls
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.expansion import Expander

_MOST = 32


def run(context: Context) -> int:
    _, given = context.parsed("", at_least=2)
    target = urls.parse(given[-1])
    found = [
        each.source.found for each in Expander(context.storage).sources(given[:-1], recursive=False)
    ]
    if not target.is_object or any(url.bucket != target.bucket for url in found):
        raise CommandFailure("GCS does not support inter-bucket composing.")
    if len(found) > _MOST:
        raise CommandFailure(
            '"compose" called with too many component objects. Limit is %d.' % _MOST
        )
    context.output.note("Composing %s from %d component object(s)." % (target, len(found)))
    kind = properties.of_headers(context.asked.headers).get("contentType")
    kind = kind or properties.content_type_of(target.name)
    context.storage.compose(target.bucket or "", [url.name for url in found], target.name, kind)
    return 0
