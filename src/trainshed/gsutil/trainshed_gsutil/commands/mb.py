"""`mb` makes buckets."""

from trainshed_gsutil import urls
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.errors import CommandFailure

_LONG = ["autoclass", "retention=", "pap=", "placement=", "rpo="]


def run(context: Context) -> int:
    options, given = context.parsed("b:c:l:p:s:k:", _LONG, at_least=1)
    storage = context.of_project(options.value("p"))
    for text in given:
        url = urls.parse(text)
        if not url.is_bucket:
            raise CommandFailure(
                'The mb command requires a URL that specifies a bucket.\n"%s" is not valid.' % text
            )
        resource = {"name": url.bucket}
        if options.value("l"):
            resource["location"] = options.value("l")
        storage_class = options.value("c") or options.value("s")
        if storage_class:
            resource["storageClass"] = storage_class.upper()
        context.output.note(f"Creating {url}...")
        storage.make_bucket(resource)
    return 0
