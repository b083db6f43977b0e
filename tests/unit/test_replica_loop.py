"""The shim's loop: moments that come without anybody calling."""

import pytest

from trainshed.replica.system.loop import Loop


def test_each_moment_is_called_once_and_may_ask_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    called: list[str] = []
    loop = Loop()

    def again() -> None:
        called.append("again")
        loop.after(1.0, lambda: called.append("last"))

    loop.after(2.0, lambda: called.append("two"))
    loop.after(1.0, again)
    for moment in (0.5, 1.5, 2.0, 2.5, 9.0):
        now = moment
        loop.turn(0)
        called.append("-")
    assert called == ["-", "again", "-", "two", "-", "last", "-", "-"]


def test_a_wait_ends_when_a_moment_comes() -> None:
    called: list[str] = []
    loop = Loop()
    loop.after(0.001, lambda: called.append("now"))
    while not called:
        loop.turn(None)
    assert called == ["now"]
