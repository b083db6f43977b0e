"""Redacts a program's environment: hides credentials and values with the form of credentials. Pure."""

import functools
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

REDACTED: Final = "(redacted)"

_ENDINGS: Final = re.compile(
    r"(?:AUTH|AUTHORIZATION|APIKEY|COOKIE|CREDENTIALS?|NETRC|PASSPHRASE|PASSWD|PASSWORD|SECRETS?|TOKENS?)$"
)
"""Endings of the parts of a variable's name that mark a credential: GITHUB_TOKEN, MYSQL_PASSWORD_FILE,
DBPASSWORD."""
_KEYS: Final = frozenset({"KEY", "KEYS", "PAT", "PASS", "PWD"})
"""Words that mark a credential as the last of several parts: WANDB_API_KEY, DB_PWD. A single PWD is a
directory."""
_KEY_IDS: Final = ("ACCESS_KEY", "PRIVATE_KEY")
_SECRET_VALUES: Final = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@"  # a URL with a password in it
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_MIN_SECRET_LENGTH: Final = 6
"""Minimum length of a secret to be hidden in other variables as well: `true` and `root` occur everywhere."""
_CACHE_SIZE: Final = 512
"""Number of variable names with a cached verdict. Most programs have the same names."""


def redact(environ: Mapping[str, str], secret_names: Collection[str] = ()) -> dict[str, str]:
    """Return the variables with `(redacted)` in place of credentials.

    A variable is hidden if it is one of `secret_names`, or if its name or value has the form of a credential.
    The same values are hidden in all other variables: CLUSTER_SPEC and TF_CONFIG repeat the job's
    environment.
    """
    hidden = {
        name
        for name, value in environ.items()
        if name in secret_names or _is_secret_name(name) or _SECRET_VALUES.search(value)
    }
    # A value may occur in other texts literally or in JSON notation.
    long = {environ[name] for name in hidden if len(environ[name]) >= _MIN_SECRET_LENGTH}
    written = {json.dumps(value, ensure_ascii=False)[1:-1] for value in long}
    # Longest first, since a value may be part of another.
    repeated = sorted(long | written, key=len, reverse=True)
    return {
        name: REDACTED if name in hidden else redact_texts(value, repeated)
        for name, value in environ.items()
    }


def redact_texts(value: str, texts: Iterable[str]) -> str:
    """Return a value with these texts replaced by `(redacted)`."""
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
