"""Redacts a program's environment: hides credentials, and values that look like credentials. Pure."""

import functools
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

REDACTED: Final = "(redacted)"

_ENDINGS: Final = re.compile(
    r"(?:AUTH|AUTHORIZATION|APIKEY|COOKIE|CREDENTIALS?|NETRC|PASSPHRASE|PASSWD|PASSWORD|SECRETS?|TOKENS?)$"
)
"""Endings of name parts that mark a variable as a credential: GITHUB_TOKEN, MYSQL_PASSWORD_FILE, DBPASSWORD.
"""
_KEYS: Final = frozenset({"KEY", "KEYS", "PAT", "PASS", "PWD"})
"""Words that mark a variable as a credential if they are the last of several name parts: WANDB_API_KEY,
DB_PWD. The variable PWD itself contains a directory."""
_KEY_IDS: Final = ("ACCESS_KEY", "PRIVATE_KEY")
_SECRET_VALUES: Final = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@"  # a URL that contains a password
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_MIN_SECRET_LENGTH: Final = 6
"""Minimum length of a credential that is also hidden in the values of other variables. Short values such as
`true` and `root` occur everywhere."""
_CACHE_SIZE: Final = 512
"""Number of variable names for which the result is cached. Most programs have the same names."""


def redact(environ: Mapping[str, str], secret_names: Collection[str] = ()) -> dict[str, str]:
    """Return the variables with `(redacted)` in place of credentials.

    A variable is hidden if it is one of `secret_names`, or if its name or value looks like a credential. The
    values of hidden variables are also replaced within all other variables, because CLUSTER_SPEC and
    TF_CONFIG repeat the job's environment.
    """
    hidden = {
        name
        for name, value in environ.items()
        if name in secret_names or _is_secret_name(name) or _SECRET_VALUES.search(value)
    }
    # Replace each hidden value in two forms, because another value may contain it literally or in JSON
    # notation.
    long = {environ[name] for name in hidden if len(environ[name]) >= _MIN_SECRET_LENGTH}
    written = {json.dumps(value, ensure_ascii=False)[1:-1] for value in long}
    # Longest first, since one value may be part of another.
    repeated = sorted(long | written, key=len, reverse=True)
    return {
        name: REDACTED if name in hidden else redact_texts(value, repeated) for name, value in environ.items()
    }


def redact_texts(value: str, texts: Iterable[str]) -> str:
    """Return a value with `(redacted)` in place of these texts."""
    for text in texts:
        value = value.replace(text, REDACTED)
    return value


@functools.lru_cache(_CACHE_SIZE)
def _is_secret_name(name: str) -> bool:
    upper = name.upper()
    parts = upper.split("_")
    return (
        any(_ENDINGS.search(part) for part in parts)
        or (len(parts) > 1 and parts[-1] in _KEYS)
        or any(key in upper for key in _KEY_IDS)
    )
