"""Write exported files into buckets in memory, with the real implementation of `datasets.port.SplitFiles`."""

import asyncio

from tests.unit.datasets_in_memory import Memory
from trainshed.core.datasets.plans import DirectoryCopy, SplitPlan
from trainshed.datasets.port import Account, Progress, Written
from trainshed.datasets.step import copy_directory, write_splits


class MemoryFiles:
    """Every export waits for `gate`. Then it fails with `failure` if a test has set one."""

    def __init__(self) -> None:
        self.buckets = Memory({}, block=1 << 16)
        self.gate = asyncio.Event()
        self.gate.set()
        #: Set when an export waits for the gate.
        self.waits = asyncio.Event()
        self.failure: Exception | None = None
        self.accounts: list[Account] = []

    async def write(self, plan: SplitPlan, account: Account, progress: Progress) -> Written:
        await self._begin(account)
        return write_splits(plan, self.buckets, progress)

    async def copy(self, copy: DirectoryCopy, account: Account) -> None:
        await self._begin(account)
        copy_directory(copy, self.buckets)

    async def _begin(self, account: Account) -> None:
        self.accounts.append(account)
        self.waits.set()
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
