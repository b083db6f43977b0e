"""python -m trainshed_reduction.reducer: a reducer, until SIGTERM. All it needs to know is in its environment
(`settings`)."""

from __future__ import annotations

import os
import sys
import time
from typing import List, Mapping, NamedTuple, Tuple

from trainshed_reduction import proof, settings, variables
from trainshed_reduction.native import library
from trainshed_reduction.reducer.counters import Overview
from trainshed_reduction.reducer.threads import listen, serve
from trainshed_reduction.reports import Reports
from trainshed_reduction.settings import Unusable


class Options(NamedTuple):
    address: Tuple[str, int]
    threads: int
    token: bytes


def options(environ: Mapping[str, str]) -> Options:
    """Raises Unusable, which names all that is wrong; OSError (the token's file)."""
    faults: List[str] = []
    place = variables.place(environ.get(variables.LISTEN, ""))
    if place is None:
        faults.append(f"{variables.LISTEN} must be HOST:PORT")
    threads = environ.get(variables.THREADS, "") or str(len(os.sched_getaffinity(0)))
    faults += filter(None, [variables.fault(variables.THREADS, threads)])
    token = settings.token_of(environ)
    if not token:
        faults.append(f"neither {variables.TOKEN} nor {variables.TOKEN_FILE} is set")
    faults += [fault for _, fault in variables.alone(environ)]
    if faults or place is None:
        raise Unusable("; ".join(faults))
    return Options(place, int(threads), token)


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _fail(text: str) -> int:
    sys.stderr.write(f"reducer: {text}\n")
    return 2


def main() -> int:
    """The exit status: 0 after SIGTERM, 1 if one of its threads failed, 2 if it could not
    begin."""
    try:
        told = options(os.environ)
        tls = proof.tls_of(os.environ)
    except (Unusable, OSError) as error:
        return _fail(str(error))
    former = variables.FORMER_THREADS
    if told_former := variables.fault(former, os.environ.get(former, "")):
        _write(told_former)
    reports = Reports(os.environ.get(variables.REPORT_FILE, ""))
    found = library.load()
    if found is None:
        text = f"reducers need the package's part in C: {library.reason()}"
        reports.note("no part in C", text, "WARNING")
        return _fail(text)
    try:
        listener = listen(told.address)
    except OSError as error:
        return _fail("cannot listen on {}:{}: {}".format(*told.address, error))
    overview = Overview(told.threads, reports, _write, time.monotonic())
    return serve(
        listener,
        told.threads,
        token=told.token,
        tls=tls,
        library=found,
        overview=overview,
        write=_write,
    )


if __name__ == "__main__":
    sys.exit(main())
