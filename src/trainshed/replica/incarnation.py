"""From the order to start one incarnation to its attempt record and the report of its end.

Owns what a shim does when it cannot do its part: the replica is over then, and that is recorded. Runs on Python 3.6.
"""

import json
import os
import socket
import time

from trainshed.replica import (
    appending,
    birth,
    clients,
    durable,
    fence,
    leases,
    protocol,
    records,
    shim,
)

_NO_SPACE_PAUSE = 0.5
_NO_SPACE_PATIENCE = 15.0
"""Seconds for a broken disk to take an attempt record, and for a full one where the shim cannot answer meanwhile: less
than a service's lease."""


def main(order: bytes, connection: socket.socket, ward: "birth.Ward | None") -> None:
    """Run one incarnation, reporting to `connection` and to whoever connects later.

    `order`: JSON, {"slot": its directory, "plan": a `LaunchDocument`}. `ward`: a guardian that waits already.
    """
    message = json.loads(order.decode("utf-8"))
    os.chdir(message["slot"])
    plan = protocol.LaunchDocument(**message["plan"])
    listeners = clients.Clients(connection)
    try:
        handle = fence.claim(plan.incarnation)
    except (fence.Refused, OSError) as refusal:
        listeners.send(_refusal(refusal))
        if ward is not None:
            ward.give_up()
        return
    keeper: "shim.Shim | None" = None
    waits: "shim.Shim | None"
    try:
        ward = ward or birth.Ward(plan.level)
        ward.tell(order, handle.lock)
        # Whoever clears the cache leaves what a live program runs in alone. What was cleared away just before, the guardian
        # does not find, and says so.
        leases.hold([*plan.read_only, *([plan.image] if plan.image else [])])
        keeper = shim.Shim(plan, listeners, handle, ward)
        record, waits = keeper.run(), keeper
    except Exception as error:  # Whatever it is, the replica is over and that is recorded.
        if keeper is None or not keeper.found_no_room:
            _keep_trace()
        record = records.lost(_cause(error), by_service=True)
        waits = None
    if keeper is not None and keeper.found_no_room and _is_undone(handle):
        handle.release()
        listeners.send({"e": "refused", "cause": protocol.REFUSED_FULL})
        return
    _write_down(handle, record, waits)
    handle.release()
    listeners.send(
        {"e": "lost", "cause": record["lost"], "by_service": record["by_service"]}
        if "lost" in record
        else {"e": "exited", "record": record}
    )


def _refusal(error: "fence.Refused | OSError") -> "protocol.Message":
    """What to say where the slot could not be taken: nothing ran."""
    if isinstance(error, fence.Refused):
        return {"e": "refused", "cause": error.cause}
    if appending.is_full(error):
        return {"e": "refused", "cause": protocol.REFUSED_FULL}
    return {"e": "lost", "cause": _cause(error), "by_service": True}


def _is_undone(handle: fence.Claim) -> bool:
    """Take back that the incarnation starts; false: that is not to be had, so it has to end."""
    try:
        handle.undo()
    except OSError:
        return False
    return True


def _cause(error: Exception) -> str:
    """In words, why this process could not do its part."""
    if isinstance(error, OSError) and appending.is_full(error):
        return (
            "the disk is full (%s): the replica's log or its records cannot be written; make room"
            % (error.strerror)
        )
    return "%s: %s" % (type(error).__name__, error)


def _keep_trace() -> None:
    import traceback  # Only here: every module imported before makes every fork dearer.

    try:
        durable.write("shim.err", traceback.format_exc(), sync=False)
    except OSError:
        return  # A full disk: what happened is in the record in short.


def _write_down(
    handle: fence.Claim, record: "protocol.Message", keeper: "shim.Shim | None"
) -> None:
    """Make the record durable. On a full disk `keeper` waits for room however long that takes, and answers who asks; a
    disk that is broken, or where there is no keeper, is waited for a while."""
    deadline = time.monotonic() + _NO_SPACE_PATIENCE
    while True:
        try:
            if keeper is not None:
                keeper.insist(lambda: _fits(handle, record))
            else:
                handle.finish(record)
            return
        except OSError:
            if time.monotonic() > deadline:
                return  # Whoever listens hears it all the same; who comes later finds that we were lost.
        time.sleep(_NO_SPACE_PAUSE)


def _fits(handle: fence.Claim, record: "protocol.Message") -> bool:
    """Write the record down, if there is room for it. Raises OSError: it is no matter of room."""
    try:
        handle.finish(record)
    except OSError as error:
        if not appending.is_full(error):
            raise
        return False
    return True
