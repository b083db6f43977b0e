"""`setmeta` changes properties of objects, and not their content."""

from trainshed_gsutil import properties, work
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.expansion import Expander, Found


def run(context: Context) -> int:
    options, given = context.parsed("h:rR", at_least=1)
    headers: "dict[str, str]" = {}
    for text in options.values("h"):
        name, _, value = text.partition(":")
        headers[name.strip().lower()] = value.strip()
    change = properties.of_headers(dict(context.asked.headers, **headers))
    if not change:
        raise CommandFailure("Fields being added/removed: none. Give -h Name:value.")
    conditions = properties.conditions_of(context.asked.headers)

    def one(found: Found) -> None:
        url = found.source.found
        context.output.note(f"Setting metadata on {url}...")
        context.storage.patch(url.bucket or "", url.name, change, conditions)

    sources = Expander(context.storage).sources(given, recursive=options.has("r", "R"))
    work.do_each(sources, one, parallel=context.asked.parallel)
    return 0
