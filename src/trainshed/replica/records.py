"""What is known of an incarnation that is over: attempt records, which a slot's journal keeps and a shim tells. Runs on
Python 3.6.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainshed.replica.protocol import Message


def ended(
    *,
    exit_code: "int | None",
    signal: "int | None",
    oom: bool,
    started: int,
    ended: int,
    log_lines: int,
    tail: str,
    child_oom: int,
    stopped: bool = False,
    stalled: bool = False,
    out_of_disk: bool = False,
) -> "Message":
    """The attempt record of a program that ran. Exactly one of exit_code and signal is not None.

    `oom`: the main process died of the memory limit; `child_oom`: how many others did. `stopped`: the main process was
    asked to stop before it ended. `stalled`: it was ended because it made no progress; `out_of_disk`: because of what its
    files took.
    """
    return {
        "exit_code": exit_code,
        "signal": signal,
        "oom": oom,
        "started": started,
        "ended": ended,
        "log_lines": log_lines,
        "tail": tail,
        "child_oom": child_oom,
        "stopped": stopped,
        "stalled": stalled,
        "out_of_disk": out_of_disk,
    }


def lost(cause: str, *, by_service: bool = False) -> "Message":
    """The attempt record of an incarnation that is gone through no fault of its program.

    `by_service`: the service could not do its part (a sandbox, a template); otherwise something outside did it.
    """
    return {"lost": cause, "by_service": by_service}
