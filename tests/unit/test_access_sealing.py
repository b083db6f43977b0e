"""Encryption of secrets before they are stored (spec/invariants#secrets)."""

import base64
from pathlib import Path

import pytest

from trainshed.access.sealing import VARIABLE, KeyUnusable, Sealer, SecretId, Unsealable

ID = SecretId("p", "db", 1)
GIVEN = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "secrets.key"


@pytest.mark.parametrize("other", [SecretId("q", "db", 1), SecretId("p", "db2", 1), SecretId("p", "db", 2)])
def test_encrypted_value_of_a_secret_cannot_be_decrypted_as_another_secret(
    file: Path, other: SecretId
) -> None:
    """Write access to the database is not sufficient to give a job the secret of another job."""
    sealer = Sealer(file, {})
    with pytest.raises(Unsealable, match="was modified or is damaged"):
        sealer.open(sealer.seal("hunter2", ID), other)


@pytest.mark.parametrize("damage", [b"", b"x", b"\x01" + bytes(40)])
def test_error_for_a_damaged_encrypted_value_names_its_secret(file: Path, damage: bytes) -> None:
    sealer = Sealer(file, {})
    sealer.seal("hunter2", ID)
    with pytest.raises(Unsealable, match="db@1 of the project p"):
        sealer.open(damage, ID)


def test_secrets_are_readable_again_after_the_missing_key_file_is_restored(file: Path) -> None:
    sealer = Sealer(file, {})
    sealed = sealer.seal("hunter2", ID)
    kept = file.read_bytes()
    file.unlink()
    fresh = Sealer(file, {})
    assert not fresh.has_key and str(file) in fresh.missing_key_message()
    with pytest.raises(Unsealable, match="its key is missing"):
        fresh.open(sealed, ID)
    file.write_bytes(kept)
    assert fresh.has_key
    assert fresh.open(sealed, ID) == "hunter2"


@pytest.mark.parametrize("text", ["", "short", base64.b64encode(bytes(31)).decode(), "*" * 44])
def test_error_for_a_malformed_encryption_key_does_not_contain_the_key(file: Path, text: str) -> None:
    for make in (lambda: Sealer(file, {VARIABLE: text}), lambda: Sealer(file, {})):
        file.write_text(text)
        with pytest.raises(KeyUnusable, match="openssl rand -base64 32") as refused:
            make()
        assert not text or text not in str(refused.value)


def test_new_values_use_the_first_key_and_older_keys_still_decrypt_old_values(file: Path) -> None:
    """For a key rotation, an operator puts the new key before the old one, in the variable or the file."""
    sealed = Sealer(file, {VARIABLE: GIVEN}).seal("hunter2", ID)
    new = base64.b64encode(bytes(range(1, 33))).decode()
    both = Sealer(file, {VARIABLE: f"{new} {GIVEN}"})
    assert both.open(sealed, ID) == "hunter2"
    again = both.seal("hunter2", ID)
    assert not file.exists()
    file.write_text(f"{new}\n")
    assert Sealer(file, {}).open(again, ID) == "hunter2"
    with pytest.raises(Unsealable, match="sealed with the key"):
        Sealer(file, {}).open(sealed, ID)
