"""Encrypts secrets with AES-256-GCM and a key of the service, so the database contains no plain text.

The key comes from the environment, or from a file that is created together with the first secret. There may
be several keys: the first key seals new values, and each key opens the values that it has sealed. A sealed
value is bound to its project, name and version. It contains a fingerprint of its key, from which the key
cannot be derived. Reading or creating the key file blocks on disk I/O.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from trainshed.replica.system import durable

VARIABLE: Final = "TRAINSHED_SECRETS_KEY"
"""Environment variable with the key in base64. Former keys follow, separated by spaces."""
FILE: Final = "secrets.key"
"""Key file in the data directory. It contains one key per line, first the current key, then former keys."""

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_FINGERPRINT_BYTES: Final = 8
_FORMAT: Final = b"\x01"
_PURPOSE: Final = b"trainshed secret"
_KEY_FORMAT: Final = (
    f"It must be {_KEY_BYTES} random bytes in base64, as `openssl rand -base64 {_KEY_BYTES}` prints them"
)


class KeyUnusable(Exception):
    """The key is missing or malformed. The message specifies the location of the key and the remedy."""


class Unsealable(Exception):
    """A sealed value cannot be opened. The message contains the secret's name and the remedy, never the
    value."""


class SecretId(Struct, frozen=True):
    """Project, name and version of a sealed value."""

    project_id: str
    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version} of the project {self.project_id}"

    def associated_data(self) -> bytes:
        """Return the three parts of the ID, each preceded by its length. Different IDs therefore have
        different bytes."""
        parts = (_PURPOSE, self.project_id.encode(), self.name.encode(), b"%d" % self.version)
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class Sealer:
    """Seals and opens values with the keys in `environ`, or else in `file`. Raises KeyUnusable for a
    malformed or unreadable key."""

    def __init__(self, file: Path, environ: Mapping[str, str]) -> None:
        self._file = file
        self._is_from_environ = VARIABLE in environ
        self._keys: tuple[bytes, ...] = ()
        if self._is_from_environ:
            self._keys = _decode_key(environ[VARIABLE], f"The variable {VARIABLE}")
        else:
            self._read()

    @property
    def has_key(self) -> bool:
        """Whether a key exists. Without a key, `open` raises an error and `seal` creates a key."""
        return bool(self._keys or self._read())

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the sealing key in hexadecimal digits, as error messages contain it; "" without a
        key."""
        keys = self._keys or self._read()
        return _fingerprint(keys[0]).hex() if keys else ""

    def seal(self, value: str, secret: SecretId) -> bytes:
        """Encrypt a value. Create a key if none exists. Raises KeyUnusable, and OSError if the key cannot be
        written."""
        # Imported here and not with the module, because the import takes as long as the rest of this method.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = (self._keys or self._read() or self._create_key())[0]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        content = AESGCM(key).encrypt(nonce, value.encode(), secret.associated_data())
        return _FORMAT + _fingerprint(key) + nonce + content

    def open(self, sealed: bytes, secret: SecretId) -> str:
        """Decrypt a value. Raises Unsealable if its key is missing or the value is damaged, or KeyUnusable if
        the keys are unusable."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        own = self._keys or self._read()
        if not own:
            raise Unsealable(
                f"The secret {secret} cannot be decrypted: its key is missing. Restore the file {self._file} "
                f"from a backup, or set {VARIABLE} to the key, and restart the service. If the key is lost, "
                "delete the secrets and set them again."
            )
        keys = {_fingerprint(key): key for key in own}
        fingerprint, nonce, content = _split_keys(sealed)
        if fingerprint not in keys:
            place = VARIABLE if self._is_from_environ else self._file
            raise Unsealable(
                f"The secret {secret} cannot be opened: it was sealed with the key {fingerprint.hex()}, "
                f"and the key in use, from {place}, is {self.fingerprint}. Add the former key to {place}, "
                "after the key in use and a space, or set the secret again."
            )
        try:
            return AESGCM(keys[fingerprint]).decrypt(nonce, content, secret.associated_data()).decode()
        except InvalidTag:
            raise Unsealable(
                f"The secret {secret} cannot be opened: its stored value was modified or is damaged. Set the "
                "secret again."
            ) from None

    def missing_key_message(self) -> str:
        """Return the error message for a request to store a secret while the key of the existing secrets is
        missing."""
        return (
            "The secret was not stored, because the key of the existing secrets is missing. Restore the "
            f"file {self._file} from a backup, or set {VARIABLE} to the key and restart the service. If the "
            "key is lost, delete the existing secrets: the service then creates a key for the next secret."
        )

    def _read(self) -> tuple[bytes, ...]:
        """Return the keys in the environment or the file, or () if no key exists. Every call reads the file,
        since an operator may restore it."""
        if self._is_from_environ:
            return self._keys
        try:
            text = self._file.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return ()
        except OSError as failure:
            raise KeyUnusable(
                f"The file with the key of the secrets, {self._file}, cannot be read ({failure.strerror}). "
                "Make the file readable for the service's user, and for no other user."
            ) from None
        self._keys = _decode_key(text, f"The key of the secrets, {self._file},")
        self._file.chmod(0o600)
        return self._keys

    def _create_key(self) -> tuple[bytes, ...]:
        key = secrets.token_bytes(_KEY_BYTES)
        durable.write(str(self._file), f"{base64.b64encode(key).decode()}\n")
        self._keys = (key,)
        return self._keys


def _decode_key(text: str, what: str) -> tuple[bytes, ...]:
    """Return the keys in a text, with the sealing key first. Raises KeyUnusable, whose message does not quote
    the text."""
    keys: list[bytes] = []
    for word in text.split() or [""]:
        try:
            key = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            raise KeyUnusable(f"{what} is not base64. {_KEY_FORMAT}.") from None
        if len(key) != _KEY_BYTES:
            raise KeyUnusable(f"{what} has {len(key)} bytes. {_KEY_FORMAT}.")
        keys.append(key)
    return tuple(keys)


def _fingerprint(key: bytes) -> bytes:
    return hashlib.sha256(_PURPOSE + key).digest()[:_FINGERPRINT_BYTES]


def _split_keys(sealed: bytes) -> tuple[bytes, bytes, bytes]:
    """Return (fingerprint, nonce, content). If the value is too short, its parts match no key."""
    start = len(_FORMAT)
    nonce = start + _FINGERPRINT_BYTES
    content = nonce + _NONCE_BYTES
    return sealed[start:nonce], sealed[nonce:content], sealed[content:]
