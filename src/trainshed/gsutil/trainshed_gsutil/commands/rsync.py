"""`rsync` makes a directory or prefix equal to another one."""

import re

from trainshed_gsutil import transfer, work
from trainshed_gsutil.commands.context import Context
from trainshed_gsutil.comparing import Change, Side, changes
from trainshed_gsutil.errors import CommandFailure
from trainshed_gsutil.options import Options
from trainshed_gsutil.transfer import Treatment

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Pattern


def run(context: Context) -> int:
    options, given = context.parsed("a:cCdenpPriRuUx:y:j:J")
    if len(given) != 2:
        raise CommandFailure(
            "The rsync command requires exactly 2 arguments, a source and a destination."
        )
    _Sync(context, options).run(given[0], given[1])
    return 0


class _Sync:
    def __init__(self, context: Context, options: Options) -> None:
        self._context = context
        self._options = options
        self._how = Treatment(context.asked.headers, keep_time=True, keep_posix=options.has("P"))
        self._failures = work.FailureCounter(context.output)

    def run(self, source: str, target: str) -> None:
        context, options = self._context, self._options
        recursive = options.has("r", "R")
        excluded = _excluded(options)
        context.output.note("Building synchronization state...")
        sides = [
            Side.of(context.storage, text, recursive=recursive, skip_links=options.has("e"))
            for text in (source, target)
        ]
        for side, text, is_source in zip(sides, (source, target), (True, False)):
            side.must_exist(text, is_source=is_source)
        planned = list(
            changes(
                sides[0],
                sides[1],
                removing=options.has("d"),
                by_checksum=options.has("c"),
                keep_newer=options.has("u"),
                keep_existing=options.has("i"),
                excluded=lambda name: bool(excluded and excluded.match(name)),
            )
        )
        context.output.note("Starting synchronization...")
        if options.has("n"):
            for change in planned:
                context.output.error(
                    f"Would remove {change.target}"
                    if change.source is None
                    else "Would copy %s to %s" % (change.source, change.target)
                )
            return
        work.do_each(
            planned,
            self._do,
            parallel=context.asked.parallel,
            failed=self._failures.add if context.asked.parallel or options.has("C") else None,
        )
        failures = self._failures.count
        if failures:
            raise CommandFailure("%d files/objects could not be copied/removed." % failures)

    def _do(self, change: Change) -> None:
        storage, output = self._context.storage, self._context.output
        source, target = change.source, change.target
        if source is None:
            output.note(f"Removing {target}")
            change.remove(storage)
            return
        output.note(f"Copying {source}...")
        if change.resource is not None:
            if target.is_cloud:
                transfer.copy(storage, change.resource, target, self._how)
            else:
                transfer.download(storage, change.resource, target.name, self._how)
        elif target.is_cloud:
            transfer.upload(storage, source.name, target, self._how)
        else:
            transfer.copy_file(source.name, target.name, self._how)


def _excluded(options: Options) -> "Pattern[str] | None":
    """Returns the expression of option -x: names that it matches are left alone on both sides."""
    text = options.value("x") or options.value("y")
    if not text:
        return None
    try:
        return re.compile(text)
    except re.error:
        raise CommandFailure(f"Invalid exclude filter ({text})") from None
