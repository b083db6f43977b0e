"""Tests that secrets are decrypted only at the start of a program (spec/operations#secrets;
spec/invariants#secrets)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.inline_store import open_inline
from tests.unit.test_engine_local_documents import PLAN
from trainshed.access.sealing import Sealer, SecretId
from trainshed.core.launch import Account, LaunchPlan
from trainshed.core.secrets import SecretRef, job_mark, mark_secret
from trainshed.engines.launch.documents import reveal_secrets
from trainshed.engines.port import EngineUnavailable, LaunchRejected, SecretMissing
from trainshed.serve.engine_adapters import Vault

DB, DB_1, API = SecretRef("db"), SecretRef("db", 1), SecretRef("api")


class Safe:
    """A store with secrets, their encryption key, and the vault under test."""

    def __init__(self, directory: Path) -> None:
        self.store = open_inline()
        self._sealer = Sealer(directory / "secrets.key", {})
        self.vault = self.by(self._sealer)

    def by(self, sealer: Sealer) -> Vault:
        return Vault(self.store.secrets, sealer, "token of {}".format)

    async def add(self, name: str, value: str, project: str = "p") -> None:
        def seal(version: int) -> bytes:
            return self._sealer.seal(value, SecretId(project, name, version))

        await self.store.secrets.add(project, name, 1, seal)


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[Safe]:
    made = Safe(tmp_path)
    yield made
    made.store.close()


def plan(**environ: str) -> LaunchPlan:
    argv, account = ("prog", environ.get("ARG", "")), Account("p")
    return replace(PLAN, argv=argv, environ=tuple(environ.items()), account=account)


async def test_reduction_token_is_derived_and_masked(safe: Safe) -> None:
    """spec/reduction: The token is stored nowhere."""
    ((shown, masked),) = await reveal_secrets([plan(TOKEN=job_mark(7))], safe.vault)
    assert (dict(shown.environ), masked) == ({"TOKEN": "token of 7"}, ("token of 7",))


async def test_newest_or_specified_secret_version_is_returned(safe: Safe) -> None:
    await safe.add("db", "first")
    await safe.add("db", "second")
    assert await safe.vault.values("p", {DB, DB_1}) == {DB: "second", DB_1: "first"}
    assert await safe.vault.values("p", {DB_1}) == {DB_1: "first"}


async def test_error_of_a_missing_secret_contains_the_name_of_the_secret(safe: Safe) -> None:
    await safe.add("db", "first")
    await safe.add("api", "of another project", "q")
    with pytest.raises(SecretMissing, match="project p no longer has the secret api") as refused:
        await safe.vault.values("p", {DB, API})
    assert "first" not in str(refused.value)


async def test_secret_that_cannot_be_decrypted_causes_a_service_failure(safe: Safe, tmp_path: Path) -> None:
    await safe.add("db", "first")
    other = safe.by(Sealer(tmp_path / "missing.key", {}))
    with pytest.raises(LaunchRejected, match="is missing") as refused:
        await other.values("p", {DB})
    assert not isinstance(refused.value, SecretMissing)
    safe.store.close()
    with pytest.raises(EngineUnavailable):
        await other.values("p", {DB})


async def test_launch_plan_with_secret_values_lists_these_values_for_masking(safe: Safe) -> None:
    await safe.add("db", "fir\ufdd0st")
    await safe.add("api", "k-e-y")
    plain = plan(A="b")
    secretive = plan(DB=f"x{mark_secret('db', '')}", ARG=mark_secret("api", ""))
    launches = await reveal_secrets([plain, secretive, replace(secretive, incarnation=2)], safe.vault)
    assert launches[0] == (plain, ()) and launches[0][0] is plain
    (shown, masked), (again, _) = launches[1:]
    assert dict(shown.environ)["DB"] == "xfir\ufdd0st" and shown.argv == ("prog", "k-e-y")
    assert sorted(masked) == ["fir\ufdd0st", "k-e-y"]
    assert again == replace(shown, incarnation=2)


async def test_launch_plan_with_secrets_is_rejected_without_a_vault() -> None:
    assert await reveal_secrets([plan(A="b")], None) == [(plan(A="b"), ())]
    with pytest.raises(LaunchRejected):
        await reveal_secrets([plan(A=mark_secret("db", ""))], None)
