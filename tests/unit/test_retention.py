"""Which jobs and logs go, and when (docs/operate.md)."""

import pytest

from trainshed.core.retention import parse_age, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 0), ("12h", 12 * 3600), ("30d", 30 * 86400), ("4w", 28 * 86400)]
)
def test_ages(text: str, seconds: int) -> None:
    assert parse_age(text) == seconds * 10**9


@pytest.mark.parametrize(("text", "size"), [("", 0), ("5MB", 5 * 10**6), ("2GiB", 2 << 30)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["0GB", "50", "50gb", "-1GB", "1.5GB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="50GB"):
        parse_size(text)
