"""What other answers tell of a job's timeline, from the details of its entries. Pure."""

from collections.abc import Iterable

from trainshed.api.calls.timestamps import text_micros
from trainshed.core.lifecycle.events import TimelineEntry
from trainshed.core.retention import LOG_DELETED
from trainshed.wire.trainshed_v1 import timeline as records


def log_deleted(entries: Iterable[TimelineEntry]) -> str:
    """Return why and when the retention has deleted a job's log, in words; "" = it has not."""
    return next((entry.message for entry in entries if entry.kind == LOG_DELETED), "")


def verdict_view(entry: TimelineEntry) -> records.Verdict:
    """Return what the failure table decided, from the entry of it."""
    details = entry.details
    return records.Verdict(
        at=text_micros(entry.at),
        rule=str(details.get("rule", "")),
        effect=str(details.get("effect", "")),
        cause=str(details.get("cause", "")),
        count=int(details.get("count", 0)),
        budget=int(details.get("budget", 0)),
        reason=str(details.get("reason", "")),
        drill=int(details.get("drill", 0)),
        message=entry.message,
    )
