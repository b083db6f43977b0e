"""Rate limits against brute-force attacks on tokens (docs/team.md#read-the-audit-log)."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace

import pytest

from trainshed.access import authentication_limits
from trainshed.access.authentication_limits import AuthenticationLimiter

ATTACKER, OTHER = "203.0.113.7", "203.0.113.8"


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the delays of all responses, with a stopped clock."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(authentication_limits, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(authentication_limits, "time", SimpleNamespace(monotonic=lambda: 1000.0))
    return waited


async def ignore(source: str, detail: Mapping[str, object]) -> None:
    pass


async def test_repeated_failed_logins_from_an_address_get_one_response_per_second(
    delays: list[float],
) -> None:
    limiter = AuthenticationLimiter(ignore)
    await asyncio.gather(*(limiter.delay_failure(ATTACKER) for _ in range(130)))
    assert delays == [min(60.0, number + 1.0) for number in range(100)]


async def test_failed_logins_from_one_address_do_not_delay_requests_from_other_addresses(
    delays: list[float],
) -> None:
    limiter = AuthenticationLimiter(ignore)
    for _ in range(100):
        await limiter.delay_failure(ATTACKER)
    del delays[:]
    await limiter.delay_failure(OTHER)
    await limiter.delay_failure("")
    assert delays == []


async def test_memory_use_is_limited_for_failed_logins_from_any_number_of_addresses(
    delays: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication_limits, "_MAX_CALLERS", 50)
    monkeypatch.setattr(authentication_limits, "_FREE_FAILURES", 0)
    limiter = AuthenticationLimiter(ignore)
    for number in range(500):
        await limiter.delay_failure(f"203.0.{number // 200}.{number % 200}")
    assert len(delays) == 500
    assert max(len(limiter._due), len(limiter._counts)) <= 50  # pyright: ignore[reportPrivateUsage]
