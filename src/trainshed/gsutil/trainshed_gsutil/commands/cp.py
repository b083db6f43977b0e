"""`cp` copies files and objects."""

import sys

from trainshed_gsutil import urls
from trainshed_gsutil.commands import cat
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.copying import Copier, CopyOptions
from trainshed_gsutil.errors import CommandFailure

OPTIONS = "a:AcDeIL:MNnpPrRs:tUvz:Zj:J"


def run(context: Context) -> int:
    return transfer(context, moving=False)


def transfer(context: Context, *, moving: bool) -> int:
    """Run `cp`, or `mv`, which also removes each source that was copied. Raises Failure."""
    command = "mv" if moving else "cp"
    options, given = context.parsed(OPTIONS, ["stet"], at_least=1)
    if options.has("I"):
        if len(given) != 1:
            raise CommandFailure("Source URLs cannot be specified with -I option")
        sources = [line.rstrip("\n") for line in sys.stdin if line.strip()]
    else:
        sources = given[:-1]
        if not sources:
            raise CommandFailure('Wrong number of arguments for "%s" command.' % command)
    if urls.parse(given[-1]).is_stream:
        cat.show(context, sources)
        return 0
    if moving:
        for text in sources:
            if urls.parse(text).is_bucket:
                raise CommandFailure("The mv command disallows naming source bucket URLs")
    Copier(context, CopyOptions.of(options, context.asked.headers), command).copy(
        sources, given[-1]
    )
    return 0
