"""Memory is given back when there was work and there is none any more (docs/adr/0111)."""

import pytest

from trainshed.serve.idle_memory import IdleMemory

pytestmark = pytest.mark.anyio


class _Store:
    def __init__(self) -> None:
        self.released = 0

    async def release_memory(self) -> None:
        self.released += 1


async def test_memory_is_given_back_once_after_work_and_not_during_it() -> None:
    used = 3.0
    store = _Store()
    memory = IdleMemory(store, lambda: used)
    assert not await memory.look()  # Nothing has happened since the start.
    used += 5.0
    assert not await memory.look()  # There may be more to come.
    used += 0.1
    assert await memory.look()
    assert store.released == 1
    used += 0.1
    assert not await memory.look()  # All of it was given back.
    used += 0.9
    assert not await memory.look()
    assert await memory.look()
    assert store.released == 2
