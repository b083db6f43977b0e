"""Secrets are sealed before they are stored (spec/invariants#secrets)."""

import base64
from pathlib import Path

import pytest

from trainshed.access.sealing import VARIABLE, KeyUnusable, Sealer, SecretId, Unsealable

ID = SecretId("p", "db", 1)
GIVEN = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secrets.key"


@pytest.mark.parametrize(
    "other", [SecretId("q", "db", 1), SecretId("p", "db2", 1), SecretId("p", "db", 2)]
)
def test_a_sealed_value_is_of_no_use_elsewhere(file: Path, other: SecretId) -> None:
    """Whoever can write the database cannot give one job another one's secret."""
    sealer = Sealer(file, {})
    with pytest.raises(Unsealable, match="was changed or is damaged"):
        sealer.open(sealer.seal("hunter2", ID), other)


@pytest.mark.parametrize("damage", [b"", b"x", b"\x01" + bytes(40)])
def test_what_is_damaged_is_told(file: Path, damage: bytes) -> None:
    sealer = Sealer(file, {})
    sealer.seal("hunter2", ID)
    with pytest.raises(Unsealable, match="db@1 of the project p"):
        sealer.open(damage, ID)


def test_a_missing_key_may_be_put_back(file: Path) -> None:
    sealer = Sealer(file, {})
    sealed = sealer.seal("hunter2", ID)
    kept = file.read_bytes()
    file.unlink()
    fresh = Sealer(file, {})
    assert not fresh.has_key and str(file) in fresh.missing()
    with pytest.raises(Unsealable, match="the key that it was sealed with is missing"):
        fresh.open(sealed, ID)
    file.write_bytes(kept)
    assert fresh.has_key
    assert fresh.open(sealed, ID) == "hunter2"


@pytest.mark.parametrize("text", ["", "short", base64.b64encode(bytes(31)).decode(), "*" * 44])
def test_what_is_no_key_is_refused_at_once_and_not_repeated(file: Path, text: str) -> None:
    for make in (lambda: Sealer(file, {VARIABLE: text}), lambda: Sealer(file, {})):
        file.write_text(text)
        with pytest.raises(KeyUnusable, match="openssl rand -base64 32") as refused:
            make()
        assert not text or text not in str(refused.value)


def test_a_changed_key_opens_what_it_sealed_and_the_former_one_is_forgotten(file: Path) -> None:
    sealer = Sealer(file, {})
    before = sealer.seal("hunter2", ID)
    former = file.read_bytes()
    key = sealer.start_change()
    after = sealer.seal(sealer.open(before, ID), ID)
    sealer.end_change(key)
    assert sealer.fingerprint == key and former not in file.read_bytes()
    assert sealer.open(before, ID) == "hunter2", "it was read before the change, and is opened now"
    fresh = Sealer(file, {})
    assert fresh.open(after, ID) == "hunter2"
    with pytest.raises(Unsealable, match="sealed with the key"):
        fresh.open(before, ID)
    sealer.start_change()
    assert former.decode().strip() not in file.read_text(), "no other change brings it back"


def test_a_change_that_broke_off_loses_nothing_and_can_be_made_again(file: Path) -> None:
    """The service was killed when some values were sealed anew, or all, and the former key not forgotten
    yet."""
    sealer = Sealer(file, {})
    before = sealer.seal("hunter2", ID)
    sealer.start_change()
    after = sealer.seal("hunter2", ID)
    second = Sealer(file, {})
    assert second.open(before, ID) == second.open(after, ID) == "hunter2"
    key = second.start_change()
    assert second.open(before, ID) == second.open(after, ID) == "hunter2"
    last = second.seal("hunter2", ID)
    second.end_change(key)
    assert Sealer(file, {}).open(last, ID) == "hunter2"
    assert len(file.read_text().split()) == 1


def test_the_environment_changes_its_key_with_both_in_it(file: Path) -> None:
    sealed = Sealer(file, {VARIABLE: GIVEN}).seal("hunter2", ID)
    with pytest.raises(KeyUnusable, match='="NEW FORMER"'):
        Sealer(file, {VARIABLE: GIVEN}).start_change()
    new = base64.b64encode(bytes(range(1, 33))).decode()
    both = Sealer(file, {VARIABLE: f"{new} {GIVEN}"})
    key = both.start_change()
    again = both.seal(both.open(sealed, ID), ID)
    both.end_change(key)
    assert Sealer(file, {VARIABLE: new}).open(again, ID) == "hunter2"
    assert not file.exists()


def test_of_two_changes_at_once_the_second_forgets_the_former_keys(file: Path) -> None:
    sealer = Sealer(file, {})
    sealer.seal("hunter2", ID)
    first = sealer.start_change()
    sealed = sealer.seal("hunter2", ID)
    second = sealer.start_change()
    sealer.end_change(first)
    assert Sealer(file, {}).open(sealed, ID) == "hunter2"
    sealer.end_change(second)
    assert len(file.read_text().split()) == 1
