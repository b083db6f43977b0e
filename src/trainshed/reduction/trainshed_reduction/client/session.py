"""The communicator's thread from beginning to end: the group comes together, runs, and ends or fails."""

from __future__ import annotations

import logging
import time
from typing import Dict, Optional

from trainshed_reduction.client.connecting import trust
from trainshed_reduction.client.lanes import Dial, Inbox
from trainshed_reduction.client.losses import Losses
from trainshed_reduction.client.membership import Membership
from trainshed_reduction.client.port import ReductionFailed
from trainshed_reduction.client.running import Running
from trainshed_reduction.client.starting import Formation, Starting
from trainshed_reduction.reports import Metric

_METRICS = 5.0
"""Seconds between two reports."""
_LOG = logging.getLogger(__name__)


class Session:
    """See `communicator.Communicator`, whose thread calls `run`."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._desk = membership.desk
        self._running: Optional[Running] = None
        self.formation: Optional[Formation] = None
        self._losses: Optional[Losses] = None

    def run(self) -> None:
        starting: Optional[Starting] = None
        try:
            settings = self._membership.settings
            dial = Dial(settings.token, trust(settings))
            starting = Starting(self._membership, dial, Inbox())
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
        running = self._running = starting.run(formation)
        losses = self._losses = Losses(
            self._membership, running.ledger, formation.lanes, formation.generation
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
        if self._membership.reports is not None:
            self._membership.reports.metrics(self.metrics())

    def _fail(self, failure: ReductionFailed) -> None:
        if self._running is not None:
            self._running.give_up(str(failure))
            self._running.end()
        if not self._desk.closing:
            self._membership.log("reduction failed: {}".format(failure))
        self._desk.fail(failure)

    def _end(self, starting: Optional[Starting]) -> None:
        if self._running is not None:
            self._report()
            self._running.close()
        if starting is not None:
            starting.close()
        if not self._desk.is_native:
            self._desk.fail(ReductionFailed("the group was closed before the operation was done"))
