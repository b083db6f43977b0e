"""The contract of every store for secrets (`trainshed.store.sqlite.resources`)."""

import pytest

from tests.contract.store.store_samples import T0
from trainshed.store.sqlite.database import Store


def sealed_value(version: int) -> bytes:
    return b"sealed \x00 %d" % version


async def add(store: Store, name: str, project: str = "p") -> int:
    return (await store.secrets.add(project, name, T0, sealed_value)).version


async def test_secret_version_numbers_are_not_reused(store: Store) -> None:
    """A job that refers to a version must never get another value for it."""
    for _ in range(3):
        await add(store, "db")
    await store.secrets.delete("p", "db", 3)
    assert await add(store, "db") == 4
    await store.secrets.delete("p", "db")
    assert await store.secrets.versions("p") == ()
    assert await add(store, "db") == 5


async def test_unencryptable_secret_is_not_stored_and_uses_no_version(store: Store) -> None:
    def no_key(version: int) -> bytes:
        raise OSError("no room for the key")

    with pytest.raises(OSError, match="no room"):
        await store.secrets.add("p", "db", T0, no_key)
    assert not await store.secrets.has_any()
    assert await add(store, "db") == 1
