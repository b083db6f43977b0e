"""References to secrets in jobs, `$(secret:NAME)` in the value of a variable, and the marks that replace them
until a program starts. Pure.

A launch plan contains marks, never secret values. A reader of the plan sees only the names of the secrets.
Only the function `mark_secret` creates marks from a job's own text.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

MAX_NAME = 255
MAX_VALUE_BYTES = 64 << 10
MIN_VALUE_CHARS = 4
"""Minimum length of a secret's value. Hiding a shorter text would also remove many other parts of a log."""

PATTERN = r"\$\(secret:([^()]*)\)"
"""Matches a reference to a secret in a job. `SecretRef.parse` parses group 1."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,254}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_REFERENCE = re.compile(rf"\$\$\(|{PATTERN}|\$\(secret:")
_MADE = re.compile(r"\.job-token\.([0-9]+)")
# Two code points that Unicode reserves for internal use, so they do not occur in ordinary texts.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")
_NO_MARK = str.maketrans({_BEGIN: "\ufffd", _END: "\ufffd"})


class SecretRef(Struct, frozen=True, order=True):
    """A secret of the job's project. `version` 0 selects the newest version."""

    name: str
    version: int = 0

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def job_uid(self) -> int:
        """Return 0 for a secret of a project. For a token that the service generates for a job's replicas,
        return the uid of that job (`job_mark`, spec/reduction)."""
        match = _MADE.fullmatch(self.name)
        return int(match[1]) if match else 0

    @staticmethod
    def parse(text: str) -> "SecretRef":
        """Parse `NAME` or `NAME@VERSION`. Raise ValueError for another text."""
        name, at, version = text.partition("@")
        if fault := name_fault(name):
            raise ValueError(fault)
        if not at:
            return SecretRef(name)
        if not _VERSION.fullmatch(version):
            raise ValueError(
                f"{version!r} is not a version of a secret. Use a whole number from 1 up, or "
                f"omit @{version} to use the newest version."
            )
        return SecretRef(name, int(version))


def name_fault(name: str) -> str | None:
    """Return the error in the name of a secret, or None if the name is valid."""
    if _NAME.fullmatch(name):
        return None
    return (
        f"{name!r} is not the name of a secret. Use at most {MAX_NAME} letters (a-z, "
        "A-Z), digits, underscores and dashes, and start with a letter."
    )


def value_fault(value: str) -> str | None:
    """Return the error in the value of a secret, or None if the value is valid. The error never contains the
    value."""
    if "\0" in value:
        return "It contains a zero byte, which variables cannot contain. Store binary data as base64."
    if len(value.strip()) < MIN_VALUE_CHARS:
        return (
            f"It has fewer than {MIN_VALUE_CHARS} characters apart from blanks. Logs "
            "cannot be masked reliably for so short a text. Use a longer value."
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "It is not text: it contains half of a surrogate pair. Store binary data as base64."
    if size > MAX_VALUE_BYTES:
        return (
            f"It has {size} bytes; at most {MAX_VALUE_BYTES} are allowed. Put longer values "
            "into an encrypted file of a bucket, and store its key here."
        )
    return None


def references(text: str) -> Iterator[SecretRef]:
    """Yield the references to secrets in a variable's value, in order. Malformed references are skipped,
    because `text_fault` reports them."""
    for match in _REFERENCE.finditer(text):
        if match[1] is not None:
            try:
                yield SecretRef.parse(match[1])
            except ValueError:
                continue


def text_fault(text: str) -> str | None:
    """Return the error in the references to secrets in a variable's value, or None if all are valid."""
    for match in _REFERENCE.finditer(text):
        if match[0] == "$$(":
            continue
        if match[1] is None:
            return (
                "It contains a $(secret: without a closing parenthesis. Write $(secret:NAME) or "
                "$(secret:NAME@VERSION), or $$(secret: for the characters themselves."
            )
        try:
            SecretRef.parse(match[1])
        except ValueError as wrong:
            return f"{match[0]} is not a secret: {wrong} Write $$( for a literal $(."
    return None


def argument_fault(text: str) -> str | None:
    """Return an error if an argument contains a reference to a secret, otherwise None. All users of a machine
    can read command lines. An argument can instead refer to a variable that contains the secret."""
    if any(match[0] != "$$(" for match in _REFERENCE.finditer(text)):
        return (
            "Arguments cannot contain secrets. Use the secret in the value of a variable "
            "in env, and read the variable in the program, or write $(VARIABLE) here. "
            "$$(secret: stands for the characters themselves."
        )
    return None


def marks_fault(text: str) -> str | None:
    """Return an error if a text contains the special characters of secret marks, otherwise None."""
    if _BEGIN in text or _END in text:
        return (
            "It contains U+FDD0 or U+FDD1, which are not characters and have a special use "
            "in this service. Remove them."
        )
    return None


def mark_secret(reference: str, otherwise: str) -> str:
    """Return the mark for the text between `$(secret:` and `)`, or `otherwise` if the text is not the name of
    a secret."""
    try:
        return f"{_BEGIN}{SecretRef.parse(reference)}{_END}"
    except ValueError:
        return otherwise


def job_mark(job_uid: int) -> str:
    """Return the mark of the token with which a job's reducers and workers authenticate each other. No job
    can request this token, because names of secrets cannot begin with a dot."""
    return f"{_BEGIN}.job-token.{job_uid}{_END}"


def remove_marks(text: str) -> str:
    """Return the text without the special characters of secret marks. Callers use this for all texts except
    the values of a job's variables, because only these values may contain marks."""
    return text.translate(_NO_MARK)


def markers_in(text: str) -> tuple[SecretRef, ...]:
    """Return the secrets whose marks a text of a launch plan contains."""
    return tuple(map(_secret_of, _MARK.findall(text)))


def referenced_secrets(argv: Iterable[str], environ: Iterable[tuple[str, str]]) -> frozenset[SecretRef]:
    """Return all secrets that a launch plan needs."""
    texts = (*argv, *(value for _, value in environ))
    return frozenset(ref for text in texts for ref in markers_in(text))


def reveal(text: str, values: Mapping[SecretRef, str]) -> str:
    """Return the text with the secret values in place of their marks. Raise KeyError for a secret without a
    value."""
    return _MARK.sub(lambda match: values[_secret_of(match[1])], text)


def resolve(
    argv: tuple[str, ...], environ: tuple[tuple[str, str], ...], values: Mapping[SecretRef, str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the arguments and the variables of a launch plan with their secret values, and the values to
    hide from the program's log. Raise KeyError for a secret that is not in `values`."""
    refs = sorted(referenced_secrets(argv, environ))
    masked = tuple(dict.fromkeys(values[ref] for ref in refs))
    return (
        tuple(reveal(item, values) for item in argv),
        tuple((name, reveal(value, values)) for name, value in environ),
        masked,
    )


def _secret_of(mark: str) -> SecretRef:
    """Return the secret that the text in a mark represents."""
    return SecretRef(mark) if _MADE.fullmatch(mark) else SecretRef.parse(mark)
