"""Why a job waits, as plain JSON of ours: `{reason, message, hint, blockers, retryTime, position}`.

`reason`: a word of `core.capacity.WaitReason`. `hint`: what would let the job start, "" if nothing is known. `blockers`: names of jobs
that hold what is missing. `retryTime`: when it is looked at again at the latest, "" = when something changes. `position`: 1 =
next, 0 = none.
"""

from trainshed.api.calls.timestamps import text_micros
from trainshed.core.capacity import Waiting
from trainshed.wire.trainshed_v1 import capacity as records


def waiting_view(waiting: Waiting, position: int) -> records.Waiting:
    return records.Waiting(
        reason=waiting.reason.value,
        message=waiting.message,
        hint=waiting.hint,
        blockers=tuple(waiting.blockers),
        retry_time=text_micros(waiting.retry_at),
        position=position,
    )
