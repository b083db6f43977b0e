"""Seals the values of secrets, so that the database never holds one: AES-256-GCM under one key of the service.

Owns the key: given by the environment, or in a file of its own that is made when the first secret is. A sealed value
is bound to its project, name and version, and says by which key it was sealed (that key's fingerprint, from which
nothing follows). Blocks on the disk for a moment when the key is read or made.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trainshed.replica import durable

VARIABLE: Final = "TRAINSHED_SECRETS_KEY"
"""The environment variable that may hold the key, in base64."""
FILE: Final = "secrets.key"
"""The key's file in the data directory."""

_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12
_FINGERPRINT_BYTES: Final = 8
_FORMAT: Final = b"\x01"
_PURPOSE: Final = b"trainshed secret"
_WANTED: Final = f"It must be {_KEY_BYTES} random bytes in base64, as `openssl rand -base64 {_KEY_BYTES}` prints them"


class KeyUnusable(Exception):
    """The key is not there, or is none. The message says where it belongs and what to do."""


class Unsealable(Exception):
    """A stored value cannot be opened. The message names the secret and what to do, and nothing of its value."""


@dataclass(frozen=True, slots=True)
class SecretId:
    """What a sealed value belongs to."""

    project_id: str
    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}@{self.version} of the project {self.project_id}"

    def bound(self) -> bytes:
        """The same in bytes, each part with its length, so that no two of them look alike."""
        parts = (_PURPOSE, self.project_id.encode(), self.name.encode(), b"%d" % self.version)
        return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


class Sealer:
    """`file`: where the key is, unless `environ` gives it. Raises KeyUnusable for a key in `environ` that is none, and for
    a file that holds none."""

    def __init__(self, file: Path, environ: Mapping[str, str]) -> None:
        self._file = file
        self._given = VARIABLE in environ
        self._key = _decoded(environ[VARIABLE], f"The variable {VARIABLE}") if self._given else b""
        if not self._given:
            self._read()

    @property
    def has_key(self) -> bool:
        """Whether there is a key. Without one nothing can be opened, and `seal` makes a new one."""
        return bool(self._key or self._read())

    def seal(self, value: str, secret: SecretId) -> bytes:
        """Encrypt a value. Makes a key if there is none. Raises KeyUnusable, OSError (it cannot be written)."""
        from cryptography.hazmat.primitives.ciphers.aead import (
            AESGCM,
        )  # Takes as long as all else here.

        key = self._key or self._read() or self._make()
        nonce = secrets.token_bytes(_NONCE_BYTES)
        content = AESGCM(key).encrypt(nonce, value.encode(), secret.bound())
        return _FORMAT + _fingerprint(key) + nonce + content

    def open(self, sealed: bytes, secret: SecretId) -> str:
        """The value. Raises Unsealable, KeyUnusable."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        key = self._key or self._read()
        if not key:
            raise Unsealable(
                f"The secret {secret} cannot be opened: the key that it was sealed with is missing. Put the file "
                f"{self._file} back from a backup, or start the service with {VARIABLE}. If the key is lost, delete "
                "the secrets and set them again."
            )
        fingerprint, nonce, content = _split(sealed)
        if fingerprint != _fingerprint(key):
            raise Unsealable(
                f"The secret {secret} cannot be opened: it was sealed with the key {fingerprint.hex()}, and the key in "
                f"use, from {self._place()}, is {_fingerprint(key).hex()}. Put the former key back, or set the secret "
                "again."
            )
        try:
            return AESGCM(key).decrypt(nonce, content, secret.bound()).decode()
        except InvalidTag:
            raise Unsealable(
                f"The secret {secret} cannot be opened: what the database holds of it was changed or is damaged. Set "
                "the secret again."
            ) from None

    def missing(self) -> str:
        """What to tell somebody who wants to add to secrets whose key is missing."""
        return (
            f"There are secrets, but the key that they were sealed with is missing. Put the file {self._file} back from "
            f"a backup, or start the service with {VARIABLE}. If the key is lost, delete those secrets first; a new key "
            "is made with the next one."
        )

    def _place(self) -> str:
        return VARIABLE if self._given else str(self._file)

    def _read(self) -> bytes:
        """The key of the file; b"" if there is none. It may have been put back since."""
        if self._given:
            return self._key
        try:
            text = self._file.read_text(encoding="ascii", errors="replace")
        except FileNotFoundError:
            return b""
        except OSError as failure:
            raise KeyUnusable(
                f"The key of the secrets, {self._file}, cannot be read ({failure.strerror}); make it readable for the "
                "user that runs the service, and for nobody else."
            ) from None
        self._key = _decoded(text, f"The key of the secrets, {self._file},")
        self._file.chmod(0o600)
        return self._key

    def _make(self) -> bytes:
        key = secrets.token_bytes(_KEY_BYTES)
        durable.write(str(self._file), base64.b64encode(key).decode() + "\n")
        self._key = key
        return key


def _decoded(text: str, what: str) -> bytes:
    """Raises KeyUnusable, which does not repeat the text."""
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise KeyUnusable(f"{what} is not base64. {_WANTED}.") from None
    if len(key) != _KEY_BYTES:
        raise KeyUnusable(f"{what} holds {len(key)} bytes. {_WANTED}.")
    return key


def _fingerprint(key: bytes) -> bytes:
    return hashlib.sha256(_PURPOSE + key).digest()[:_FINGERPRINT_BYTES]


def _split(sealed: bytes) -> tuple[bytes, bytes, bytes]:
    """(fingerprint, nonce, content); of what is too short to be any, parts that fit no key."""
    start = len(_FORMAT)
    nonce = start + _FINGERPRINT_BYTES
    content = nonce + _NONCE_BYTES
    return sealed[start:nonce], sealed[nonce:content], sealed[content:]
