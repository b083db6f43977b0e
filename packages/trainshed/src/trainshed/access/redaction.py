"""Redacts a program's environment: it hides credentials, and values that look like credentials. Pure."""

import functools
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Final

REDACTED: Final = "(redacted)"

_ENDINGS: Final = re.compile(
    r"(?:AUTH|AUTHORIZATION|APIKEY|COOKIE|CREDENTIALS?|NETRC|PASSPHRASE|PASSWD|PASSWORD|SECRETS?|TOKENS?)$"
)
"""A part of a variable's name that ends like this marks a credential: GITHUB_TOKEN, MYSQL_PASSWORD_FILE,
DBPASSWORD."""
_KEYS: Final = frozenset({"KEY", "KEYS", "PAT", "PASS", "PWD"})
"""Such a word marks a credential as the last of several parts: WANDB_API_KEY, DB_PWD. PWD alone is a
directory."""
_KEY_IDS: Final = ("ACCESS_KEY", "PRIVATE_KEY")
_TELLING_VALUES: Final = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@"  # a URL with a password in it
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_LEAST_REPEATED: Final = 6
"""Characters that a secret must have to be looked for in other variables as well: `true` and `root` are
everywhere."""
_NAMES: Final = 512
"""Variable names whose verdict is cached: most programs have variables of the same names."""


def redacted(environ: Mapping[str, str], secret_names: Collection[str] = ()) -> dict[str, str]:
    """Returns the variables with `(redacted)` as the value of each one that holds a secret (`secret_names`),
    or whose name or value looks like a credential. CLUSTER_SPEC and TF_CONFIG repeat the job with its
    variables, so the same values are hidden in them."""
    hidden = {
        name
        for name, value in environ.items()
        if name in secret_names or _is_called_so(name) or _TELLING_VALUES.search(value)
    }
    # The forms that these values can take in a text: as they are, and in JSON.
    long = {environ[name] for name in hidden if len(environ[name]) >= _LEAST_REPEATED}
    written = {json.dumps(value, ensure_ascii=False)[1:-1] for value in long}
    # Longest first: one value may be a part of another.
    repeated = sorted(long | written, key=len, reverse=True)
    return {
        name: REDACTED if name in hidden else without(value, repeated)
        for name, value in environ.items()
    }


def without(value: str, texts: Iterable[str]) -> str:
    """Return a text in which these are hidden."""
    for text in texts:
        value = value.replace(text, REDACTED)
    return value


@functools.lru_cache(_NAMES)
def _is_called_so(name: str) -> bool:
    upper = name.upper()
    parts = upper.split("_")
    return (
        any(_ENDINGS.search(part) for part in parts)
        or (len(parts) > 1 and parts[-1] in _KEYS)
        or any(key in upper for key in _KEY_IDS)
    )
