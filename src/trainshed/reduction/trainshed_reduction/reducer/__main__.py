"""python -m trainshed_reduction.reducer: a reducer, until SIGTERM. All it needs to know is in its environment
(`settings`)."""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

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


def options(arguments: Sequence[str], environ: "Mapping[str, str]") -> Options:
    """Raises Unusable, which names all that is wrong; OSError (the token's file)."""
    parser = argparse.ArgumentParser(
        prog="python -m trainshed_reduction.reducer",
        description="Adds what the workers of a job send, and sends the sums back.",
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        default=environ.get(variables.LISTEN, ""),
        help="of the first thread; the others take free ports of the same host (${})".format(
            variables.LISTEN
        ),
    )
    parser.add_argument(
        "--processes",
        metavar="N",
        default=environ.get(variables.PROCESSES, "") or str(len(os.sched_getaffinity(0))),
        help="default: one for each processor that this one may use (${})".format(
            variables.PROCESSES
        ),
    )
    given = parser.parse_args(arguments)
    faults: List[str] = []
    place = variables.place(given.listen)
    if place is None:
        faults.append(
            "--listen or {} must be HOST:PORT, not {!r}".format(variables.LISTEN, given.listen)
        )
    if variables.fault(variables.PROCESSES, given.processes):
        faults.append(
            "--processes or {} must be between 1 and {}, not {!r}".format(
                variables.PROCESSES, variables.MOST_PROCESSES, given.processes
            )
        )
    token = settings.token_of(environ)
    if not token:
        faults.append("neither {} nor {} is set".format(variables.TOKEN, variables.TOKEN_FILE))
    faults += [fault for _, fault in variables.alone(environ)]
    if faults or place is None:
        raise Unusable("; ".join(faults))
    return Options(place, int(given.processes), token)


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _fail(text: str) -> int:
    sys.stderr.write("reducer: {}\n".format(text))
    return 2


def main(arguments: "Optional[Sequence[str]]" = None) -> int:
    """The exit status: 0 after SIGTERM, 1 if one of its threads failed, 2 if it could not
    begin."""
    try:
        told = options(sys.argv[1:] if arguments is None else arguments, os.environ)
        tls = proof.tls_of(os.environ)
    except (Unusable, OSError) as error:
        return _fail(str(error))
    reports = Reports(os.environ.get(variables.REPORT_FILE, ""))
    found = library.load()
    if found is None:
        text = "reducers need the package's part in C: {}".format(library.reason())
        reports.note("no part in C", text, "WARNING")
        return _fail(text)
    try:
        listeners = listen(told.address, told.threads)
    except OSError as error:
        return _fail("cannot listen on {}:{}: {}".format(*told.address, error))
    overview = Overview(told.threads, reports, _write, time.monotonic())
    return serve(
        listeners, token=told.token, tls=tls, library=found, overview=overview, write=_write
    )


if __name__ == "__main__":
    sys.exit(main())
