"""References to secrets in jobs, `$(secret:NAME)` within the value of a variable, and the marks
that replace them until a program starts.

A launch plan contains marks, never values. A reader of the plan sees only the names of the
secrets. Only `marked` makes marks from a job's own text. Pure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

MAX_NAME = 255
MAX_VALUE_BYTES = 64 << 10
MIN_VALUE_CHARS = 4
"""Anything shorter could not be kept out of a log without taking half of the log with it."""

PATTERN = r"\$\(secret:([^()]*)\)"
"""A reference as a job writes it; `SecretRef.parse` reads group 1."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,254}")
_VERSION = re.compile(r"[1-9][0-9]{0,8}")
_REFERENCE = re.compile(rf"\$\$\(|{PATTERN}|\$\(secret:")
_MADE = re.compile(r"\.job-token\.([0-9]+)")
# Two code points that Unicode reserves for internal use: no text that is meant for others has them.
_BEGIN, _END = "\ufdd0", "\ufdd1"
_MARK = re.compile(f"{_BEGIN}([^{_BEGIN}{_END}]*){_END}")
_NO_MARK = str.maketrans({_BEGIN: "\ufffd", _END: "\ufffd"})


class SecretRef(Struct, frozen=True, order=True):
    """A secret of the job's project; `version` 0 = the newest there is."""

    name: str
    version: int = 0

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name

    @property
    def job_uid(self) -> int:
        """The job for whose replicas the service makes this token, instead of looking a secret up
        (`job_mark`, spec/reduction); 0 = it is a secret of a project."""
        match = _MADE.fullmatch(self.name)
        return int(match[1]) if match else 0

    @staticmethod
    def parse(text: str) -> "SecretRef":
        """Read `NAME` or `NAME@VERSION`. Raise ValueError for anything else."""
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
    """Return what is wrong with the name of a secret; None = nothing."""
    if _NAME.fullmatch(name):
        return None
    return (
        f"{name!r} is not the name of a secret. Use at most {MAX_NAME} letters (a-z, "
        "A-Z), digits, underscores and dashes, and start with a letter."
    )


def value_fault(value: str) -> str | None:
    """Return what is wrong with the value of a secret, without showing the value; None = nothing."""
    if "\0" in value:
        return (
            "It contains a zero byte, which variables cannot contain. Store binary data as base64."
        )
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
    """Yield the secrets in a variable's value, in order. Malformed references are skipped;
    `text_fault` reports them."""
    for match in _REFERENCE.finditer(text):
        if match[1] is not None:
            try:
                yield SecretRef.parse(match[1])
            except ValueError:
                continue


def text_fault(text: str) -> str | None:
    """Return what is wrong with the references in a variable's value; None = nothing."""
    for match in _REFERENCE.finditer(text):
        if match[0] == "$$(":
            continue
        if match[1] is None:
            return (
                "It contains a $(secret: without an end. Write $(secret:NAME) or "
                "$(secret:NAME@VERSION), or $$(secret: for the characters themselves."
            )
        try:
            SecretRef.parse(match[1])
        except ValueError as wrong:
            return f"{match[0]} is not a secret: {wrong} Write $$( for a literal $(."
    return None


def argument_fault(text: str) -> str | None:
    """Return why an argument may not name a secret; None = it names none. Everybody on the machine can read a
    command line, so a secret gets there only by way of a variable, and not by mistake."""
    if any(match[0] != "$$(" for match in _REFERENCE.finditer(text)):
        return (
            "Arguments cannot contain secrets. Use the secret in the value of a variable "
            "in env, and read the variable in the program, or write $(VARIABLE) here. "
            "$$(secret: stands for the characters themselves."
        )
    return None


def marks_fault(text: str) -> str | None:
    """Return what is wrong with a text that could pass for one with marks in it; None = nothing."""
    if _BEGIN in text or _END in text:
        return (
            "It contains U+FDD0 or U+FDD1, which are not characters and have a special use "
            "in this service. Remove them."
        )
    return None


def marked(reference: str, otherwise: str) -> str:
    """Return the mark for what stands between `$(secret:` and `)`; `otherwise` if that names no secret."""
    try:
        return f"{_BEGIN}{SecretRef.parse(reference)}{_END}"
    except ValueError:
        return otherwise


def job_mark(job_uid: int) -> str:
    """Return the mark of the token by which a job's reducers and workers know each other. No job can name it,
    since no secret's name begins with a dot."""
    return f"{_BEGIN}.job-token.{job_uid}{_END}"


def unmarked(text: str) -> str:
    """Return the text without anything that could pass for a mark. For texts other than values of a job's
    variables."""
    return text.translate(_NO_MARK)


def markers_in(text: str) -> tuple[SecretRef, ...]:
    """Return the secrets whose marks a text of a launch plan holds."""
    return tuple(map(_meant, _MARK.findall(text)))


def named_in(argv: Iterable[str], environ: Iterable[tuple[str, str]]) -> frozenset[SecretRef]:
    """Return every secret that a launch plan needs."""
    texts = (*argv, *(value for _, value in environ))
    return frozenset(ref for text in texts for ref in markers_in(text))


def reveal(text: str, values: Mapping[SecretRef, str]) -> str:
    """Return the text with the values in place of their marks. Raise KeyError for a secret that is not among
    them."""
    return _MARK.sub(lambda match: values[_meant(match[1])], text)


def resolved(
    argv: tuple[str, ...], environ: tuple[tuple[str, str], ...], values: Mapping[SecretRef, str]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the arguments and the variables of a launch plan with the values in them, and the texts that
    must be kept out of the program's log. Raise KeyError for a secret that is not among `values`."""
    refs = sorted(named_in(argv, environ))
    masked = tuple(dict.fromkeys(values[ref] for ref in refs))
    return (
        tuple(reveal(item, values) for item in argv),
        tuple((name, reveal(value, values)) for name, value in environ),
        masked,
    )


def _meant(mark: str) -> SecretRef:
    """Return the secret that the text within a mark names."""
    return SecretRef(mark) if _MADE.fullmatch(mark) else SecretRef.parse(mark)
