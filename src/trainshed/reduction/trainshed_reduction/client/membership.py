"""A rank's membership of its group: what all parts of its side work with, from the first connection to the last."""

from __future__ import annotations

from typing import Callable, NamedTuple, Optional

from trainshed_reduction.client.agreement import Agreement
from trainshed_reduction.client.desk import Desk
from trainshed_reduction.client.port import Apart, Native
from trainshed_reduction.reports import Reports
from trainshed_reduction.settings import Settings
from trainshed_reduction.wire import Hello


class Membership(NamedTuple):
    """`hello`: which rank of which group, without a generation. None where there is no such thing: `agreement` (no board),
    `native`, `apart`, `reports`. `log`: takes a line."""

    settings: Settings
    desk: Desk
    hello: Hello
    agreement: Optional[Agreement]
    native: Optional[Native]
    apart: Optional[Apart]
    reports: Optional[Reports]
    log: Callable[[str], None]
