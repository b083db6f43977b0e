"""The communicator's thread from beginning to end: the group comes together, runs, and ends or fails."""

from __future__ import annotations

import logging
import time
from typing import Callable, Dict, Optional

from trainshed_reduction import proof
from trainshed_reduction.client.agreement import Agreement
from trainshed_reduction.client.connecting import trust
from trainshed_reduction.client.desk import Desk
from trainshed_reduction.client.lanes import Dial, Inbox
from trainshed_reduction.client.losses import Losses
from trainshed_reduction.client.port import Board, Native, ReductionFailed
from trainshed_reduction.client.running import Running
from trainshed_reduction.client.starting import Formation, Starting
from trainshed_reduction.reports import Metric, Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import Hello

_METRICS = 5.0
"""Seconds between two reports."""
_LOG = logging.getLogger(__name__)


class Session:
    """See `communicator.Communicator`, whose thread calls `run`."""

    def __init__(
        self,
        *,
        settings: Settings,
        desk: Desk,
        group: str,
        rank: int,
        world: int,
        board: Optional[Board],
        native: Optional[Native],
        reports: Optional[Reports],
        log: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._desk = desk
        self._native = native
        self._reports = reports
        self._log = log
        self._hello = Hello(b"", b"", proof.group_digest(group), 0, 0, rank, world, 0)
        self._agreement: Optional[Agreement] = None
        if board is not None:
            prefix = "reduction/{}/{}".format(self._hello.group.hex(), settings.attempt)
            self._agreement = Agreement(board, prefix, rank, world, lambda: desk.closing)
        self._running: Optional[Running] = None
        self.formation: Optional[Formation] = None
        self._losses: Optional[Losses] = None

    def run(self) -> None:
        starting: Optional[Starting] = None
        try:
            dial = Dial(self._settings.token, trust(self._settings))
            starting = Starting(
                settings=self._settings,
                hello=self._hello,
                dial=dial,
                inbox=Inbox(),
                agreement=self._agreement,
                closing=lambda: self._desk.closing,
                log=self._log,
            )
            self._serve(starting)
        except ReductionFailed as failure:
            self._fail(failure)
        except Exception as error:
            _LOG.exception("the client of the reducers failed")
            self._fail(ReductionFailed("the client of the reducers failed: {!r}".format(error)))
        finally:
            self._end(starting)

    def _serve(self, starting: Starting) -> None:
        self.formation = formation = starting.form()
        running = self._running = starting.run(formation, self._desk)
        losses = self._losses = Losses(
            settings=self._settings,
            desk=self._desk,
            ledger=running.ledger,
            lanes=formation.lanes,
            generation=formation.generation,
            agreement=self._agreement,
            native=self._native,
            reports=self._reports,
            log=self._log,
        )
        running.begin()
        self._desk.open()
        report_at = 0.0
        while not self._desk.closing and not self._desk.is_native:
            running.turn(losses)
            now = time.monotonic()
            if now >= report_at:
                report_at = now + _METRICS
                self._report()
        running.leave()

    def metrics(self) -> Dict[str, Metric]:
        if self._running is None or self._losses is None:
            return {}
        return dict(self._running.metrics(), epoch=self._losses.epoch)

    def _report(self) -> None:
        if self._reports is not None:
            self._reports.metrics(self.metrics())

    def _fail(self, failure: ReductionFailed) -> None:
        if self._running is not None:
            self._running.give_up(str(failure))
            self._running.end()
        if not self._desk.closing:
            self._log("reduction failed: {}".format(failure))
        self._desk.fail(failure)

    def _end(self, starting: Optional[Starting]) -> None:
        if self._running is not None:
            self._report()
            self._running.close()
        if starting is not None:
            starting.close()
        if not self._desk.is_native:
            self._desk.fail(ReductionFailed("the group was closed before the operation was done"))
