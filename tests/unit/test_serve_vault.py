"""Secrets are opened when a program is about to start, and at no other moment (spec/operations#secrets;
spec/invariants#secrets)."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.inline_store import InlineStore, open_inline
from tests.unit.test_engine_local_documents import PLAN
from trainshed.access.sealing import Sealer, SecretId
from trainshed.core.launch import Account, LaunchPlan
from trainshed.core.secrets import SecretRef, job_mark, marked
from trainshed.engines.launch.documents import revealed
from trainshed.engines.port import EngineUnavailable, LaunchRejected, SecretMissing
from trainshed.serve.engine_adapters import Vault

SECOND = 10**9
DB, DB_1, API = SecretRef("db"), SecretRef("db", 1), SecretRef("api")


@pytest.fixture
def store() -> Iterator[InlineStore]:
    opened = open_inline()
    yield opened
    opened.close()


@pytest.fixture
def sealer(tmp_path: Path) -> Sealer:
    return Sealer(tmp_path / "secrets.key", {})


class Clock:
    now = 1_760_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def vault(store: InlineStore, sealer: Sealer, clock: Clock) -> Vault:
    return Vault(store.secrets, sealer, clock, "token of {}".format)


async def add(
    store: InlineStore, sealer: Sealer, name: str, value: str, project: str = "p"
) -> None:
    def seal(version: int) -> bytes:
        return sealer.seal(value, SecretId(project, name, version))

    await store.secrets.add(project, name, 1, seal)


async def used(store: InlineStore) -> dict[tuple[str, int], int]:
    await asyncio.sleep(
        0
    )  # What notes a use runs beside the start, and this store answers at once.
    return {
        (version.name, version.version): version.used
        for version in await store.secrets.versions("p")
    }


def plan(**environ: str) -> LaunchPlan:
    argv, account = ("prog", environ.get("ARG", "")), Account("p")
    return replace(PLAN, argv=argv, environ=tuple(environ.items()), account=account)


async def test_what_a_jobs_reducers_are_known_by_is_made_and_not_looked_up(vault: Vault) -> None:
    """spec/reduction: it is stored nowhere, and what is secret of it masked like a secret."""
    ((shown, masked),) = await revealed([plan(TOKEN=job_mark(7))], vault)
    assert (dict(shown.environ), masked) == ({"TOKEN": "token of 7"}, ("token of 7",))


async def test_the_newest_or_the_named_version_is_given(
    store: InlineStore, sealer: Sealer, vault: Vault, clock: Clock
) -> None:
    await add(store, sealer, "db", "first")
    await add(store, sealer, "db", "second")
    assert await vault.values("p", {DB, DB_1}) == {DB: "second", DB_1: "first"}
    assert await vault.values("p", {DB_1}) == {DB_1: "first"}
    assert await used(store) == {("db", 2): clock.now, ("db", 1): clock.now}


async def test_a_secret_that_is_gone_is_named(
    store: InlineStore, sealer: Sealer, vault: Vault
) -> None:
    await add(store, sealer, "db", "first")
    await add(store, sealer, "api", "of another project", "q")
    with pytest.raises(SecretMissing, match="project p has no secret api any more") as refused:
        await vault.values("p", {DB, API})
    assert "first" not in str(refused.value)


async def test_a_secret_that_cannot_be_opened_is_the_services_affair(
    store: InlineStore, sealer: Sealer, tmp_path: Path, clock: Clock
) -> None:
    await add(store, sealer, "db", "first")
    other = Vault(store.secrets, Sealer(tmp_path / "missing.key", {}), clock, str)
    with pytest.raises(LaunchRejected, match="is missing") as refused:
        await other.values("p", {DB})
    assert not isinstance(refused.value, SecretMissing)
    store.close()
    with pytest.raises(EngineUnavailable):
        await other.values("p", {DB})


async def test_plans_are_revealed_each_with_what_its_log_must_not_show(
    store: InlineStore, sealer: Sealer, vault: Vault
) -> None:
    await add(store, sealer, "db", "fir\ufdd0st")
    await add(store, sealer, "api", "k-e-y")
    plain = plan(A="b")
    secretive = plan(DB=f"x{marked('db', '')}", ARG=marked("api", ""))
    launches = await revealed([plain, secretive, replace(secretive, incarnation=2)], vault)
    assert launches[0] == (plain, ()) and launches[0][0] is plain
    (shown, masked), (again, _) = launches[1:]
    assert dict(shown.environ)["DB"] == "xfir\ufdd0st" and shown.argv == ("prog", "k-e-y")
    assert sorted(masked) == ["fir\ufdd0st", "k-e-y"]
    assert again == replace(shown, incarnation=2)


async def test_without_a_way_to_secrets_only_plans_that_need_none_are_started() -> None:
    assert await revealed([plan(A="b")], None) == [(plan(A="b"), ())]
    with pytest.raises(LaunchRejected):
        await revealed([plan(A=marked("db", ""))], None)
