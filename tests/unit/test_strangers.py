"""A brute-force attack gets one answer per second (docs/team.md#read-the-audit-log)."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from trainshed.access import strangers
from trainshed.access.strangers import Strangers

ATTACKER, OTHER = "203.0.113.7", "203.0.113.8"


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Every delay of an answer; the clock stands still."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(strangers, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(strangers, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    return waited


async def nobody_hears(source: str, detail: Mapping[str, object]) -> None:
    pass


async def test_answers_to_parallel_guesses_are_a_second_apart(delays: list[float]) -> None:
    refusing = Strangers(nobody_hears)
    await asyncio.gather(*(refusing.refused(ATTACKER) for _ in range(130)))
    assert delays == [min(60.0, number + 1.0) for number in range(100)]


async def test_other_networks_are_not_delayed(delays: list[float]) -> None:
    refusing = Strangers(nobody_hears)
    for _ in range(100):
        await refusing.refused(ATTACKER)
    del delays[:]
    await refusing.refused(OTHER)
    await refusing.refused("")
    assert delays == []


async def test_memory_is_bounded_however_many_addresses_guess(
    delays: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strangers, "_MOST", 50)
    monkeypatch.setattr(strangers, "_FREE", 0)
    refusing = Strangers(nobody_hears)
    for number in range(500):
        await refusing.refused(f"203.0.{number // 200}.{number % 200}")
    assert len(delays) == 500
    assert max(len(refusing._due), len(refusing._counts)) <= 50  # pyright: ignore[reportPrivateUsage]
