"""Seals secrets, so that the database never holds one: AES-256-GCM under one key of the service.

The module owns the key: the environment gives it, or a file that is made with the first secret. A sealed
value is bound to its project, name and version, and carries a fingerprint of the key that sealed it, from
which nothing about the key follows. Reading or making the key blocks on the disk for a moment. There can be
several, in the file as in the variable: the first one seals, and each opens what it has sealed.
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
"""The environment variable that may hold the key, in base64; former keys follow it, separated by blanks."""
FILE: Final = "secrets.key"
"""The key's file in the data directory; it has one key a line, former ones last."""

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_FINGERPRINT_BYTES: Final = 8
_FORMAT: Final = b"\x01"
_PURPOSE: Final = b"trainshed secret"
_WANTED: Final = (
    f"It must be {_KEY_BYTES} random bytes in base64, "
    f"as `openssl rand -base64 {_KEY_BYTES}` prints them"
)


class KeyUnusable(Exception):
    """The key is missing, or is not a key. The message says where it belongs and what to do."""


class Unsealable(Exception):
    """A stored value cannot be opened. The message names the secret and what to do, never its value."""


class SecretId(Struct, frozen=True):
    """The project, name and version that a sealed value belongs to."""

    project_id: str
    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version} of the project {self.project_id}"

    def bound(self) -> bytes:
        """The three as bytes, each preceded by its length, so that no two ids have the same bytes."""
        parts = (_PURPOSE, self.project_id.encode(), self.name.encode(), b"%d" % self.version)
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class Sealer:
    """Seals and opens values with the keys of `environ`, or else of `file`. Raises KeyUnusable if either
    holds something that is not a key."""

    def __init__(self, file: Path, environ: Mapping[str, str]) -> None:
        self._file = file
        self._given = VARIABLE in environ
        self._keys: tuple[bytes, ...] = ()
        if self._given:
            self._keys = _decoded(environ[VARIABLE], f"The variable {VARIABLE}")
        else:
            self._read()

    @property
    def has_key(self) -> bool:
        """Whether there is a key. Without one nothing can be opened, and `seal` makes a new one."""
        return bool(self._keys or self._read())

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the key that seals, as error messages show it; "" without a key."""
        keys = self._keys or self._read()
        return _fingerprint(keys[0]).hex() if keys else ""

    def seal(self, value: str, secret: SecretId) -> bytes:
        """Encrypt a value. Makes a key if there is none. Raises KeyUnusable; OSError if the key cannot be
        written."""
        # Loading it takes as long as all else here.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = (self._keys or self._read() or self._make())[0]
        nonce = secrets.token_bytes(_NONCE_BYTES)
        content = AESGCM(key).encrypt(nonce, value.encode(), secret.bound())
        return _FORMAT + _fingerprint(key) + nonce + content

    def open(self, sealed: bytes, secret: SecretId) -> str:
        """Decrypt a value. Raises Unsealable, KeyUnusable."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        own = self._keys or self._read()
        if not own:
            raise Unsealable(
                f"The secret {secret} cannot be opened: the key that it was sealed with is missing. Put "
                f"the file {self._file} back from a backup, or start the service with {VARIABLE}. If the "
                "key is lost, delete the secrets and set them again."
            )
        keys = {_fingerprint(key): key for key in own}
        fingerprint, nonce, content = _split(sealed)
        if fingerprint not in keys:
            place = VARIABLE if self._given else self._file
            raise Unsealable(
                f"The secret {secret} cannot be opened: it was sealed with the key {fingerprint.hex()}, "
                f"and the key in use, from {place}, is {self.fingerprint}. Put the former key "
                "behind it, or set the secret again."
            )
        try:
            return AESGCM(keys[fingerprint]).decrypt(nonce, content, secret.bound()).decode()
        except InvalidTag:
            raise Unsealable(
                f"The secret {secret} cannot be opened: what the database holds of it was changed or is "
                "damaged. Set the secret again."
            ) from None

    def missing(self) -> str:
        """The message for somebody who adds a secret while the key of the existing ones is missing."""
        return (
            "There are secrets, but the key that they were sealed with is missing. Put the file "
            f"{self._file} back from a backup, or start the service with {VARIABLE}. If the key is lost, "
            "delete those secrets first; a new key is made with the next one."
        )

    def _read(self) -> tuple[bytes, ...]:
        """The keys in the file, () if it has none. It is read anew each time, since an operator may put it
        back."""
        if self._given:
            return self._keys
        try:
            text = self._file.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return ()
        except OSError as failure:
            raise KeyUnusable(
                f"The key of the secrets, {self._file}, cannot be read ({failure.strerror}); make it "
                "readable for the user that runs the service, and for nobody else."
            ) from None
        self._keys = _decoded(text, f"The key of the secrets, {self._file},")
        self._file.chmod(0o600)
        return self._keys

    def _make(self) -> tuple[bytes, ...]:
        key = secrets.token_bytes(_KEY_BYTES)
        durable.write(str(self._file), f"{base64.b64encode(key).decode()}\n")
        self._keys = (key,)
        return self._keys


def _decoded(text: str, what: str) -> tuple[bytes, ...]:
    """The keys in a text, with the sealing one first. Raises KeyUnusable, which does not repeat the text."""
    keys: list[bytes] = []
    for word in text.split() or [""]:
        try:
            key = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            raise KeyUnusable(f"{what} is not base64. {_WANTED}.") from None
        if len(key) != _KEY_BYTES:
            raise KeyUnusable(f"{what} holds {len(key)} bytes. {_WANTED}.")
        keys.append(key)
    return tuple(keys)


def _fingerprint(key: bytes) -> bytes:
    return hashlib.sha256(_PURPOSE + key).digest()[:_FINGERPRINT_BYTES]


def _split(sealed: bytes) -> tuple[bytes, bytes, bytes]:
    """Returns (fingerprint, nonce, content). Parts of a value that is too short fit no key."""
    start = len(_FORMAT)
    nonce = start + _FINGERPRINT_BYTES
    content = nonce + _NONCE_BYTES
    return sealed[start:nonce], sealed[nonce:content], sealed[content:]
