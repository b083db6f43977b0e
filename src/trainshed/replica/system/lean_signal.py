"""Provides the part of `signal` that is used here, without the modules that `signal` loads (`enum`,
`functools` and their own), because starts on other machines wait for those (docs/adr/0109). Signals are plain
numbers. Runs on Python 3.6."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from signal import (
        ITIMER_REAL,
        SIG_BLOCK,
        SIG_DFL,
        SIG_IGN,
        SIG_SETMASK,
        SIGABRT,
        SIGALRM,
        SIGCHLD,
        SIGCONT,
        SIGHUP,
        SIGINT,
        SIGKILL,
        SIGPIPE,
        SIGSEGV,
        SIGSTOP,
        SIGSYS,
        SIGTERM,
        SIGXFSZ,
        pthread_sigmask,
        set_wakeup_fd,
        setitimer,
        signal,
    )
else:
    try:
        import _signal as _core
    except ImportError:  # Not CPython.
        import signal as _core
    globals().update((_name, getattr(_core, _name)) for _name in dir(_core) if _name[0] != "_")

__all__ = [
    "ITIMER_REAL",
    "SIGABRT",
    "SIGALRM",
    "SIGCHLD",
    "SIGCONT",
    "SIGHUP",
    "SIGINT",
    "SIGKILL",
    "SIGPIPE",
    "SIGSEGV",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGXFSZ",
    "SIG_BLOCK",
    "SIG_DFL",
    "SIG_IGN",
    "SIG_SETMASK",
    "pthread_sigmask",
    "set_wakeup_fd",
    "setitimer",
    "signal",
]
