"""`rb` removes empty buckets."""

from trainshed_gsutil import urls
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure, Failure, ServiceFailure
from trainshed_gsutil.expansion import Expander


def run(context: Context) -> int:
    options, given = context.parsed("f", at_least=1)
    go_on, failed = options.has("f"), False
    for text in given:
        url = urls.parse(text)
        if not url.is_bucket:
            raise CommandFailure('"rb" command requires a URL with no object name')
        for name in Expander(context.storage).buckets(url):
            context.output.note(f"Removing gs://{name}/...")
            try:
                context.storage.remove_bucket(name)
            except ServiceFailure as failure:
                said: "Failure" = failure
                if failure.status == 409:
                    said = _NotEmpty(
                        "409 gs://%s/ is not empty: gsutil rm -r gs://%s removes it with all its objects."
                        % (name, name)
                    )
                if not go_on:
                    raise said from None
                failed = True
                context.output.error("%s: %s" % (said.name, said))
    return int(failed)


class _NotEmpty(Failure):
    name = "NotEmptyException"
