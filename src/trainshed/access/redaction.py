"""What of a program's environment may be kept or shown: everything but what is, or looks like, a credential. Pure."""

import re
from collections.abc import Collection, Mapping
from typing import Final

REDACTED: Final = "(redacted)"

_ENDINGS: Final = re.compile(
    r"(?:AUTH|AUTHORIZATION|APIKEY|COOKIE|CREDENTIALS?|NETRC|PASSPHRASE|PASSWD|PASSWORD|SECRETS?|TOKENS?)$"
)
"""A part of a variable's name that ends so tells of a credential: GITHUB_TOKEN, MYSQL_PASSWORD_FILE, DBPASSWORD."""
_KEYS: Final = frozenset({"KEY", "KEYS", "PAT", "PASS", "PWD"})
"""So does one of these as the last of several parts: WANDB_API_KEY, DB_PWD; PWD alone is a directory."""
_KEY_IDS: Final = ("ACCESS_KEY", "PRIVATE_KEY")
_TELLING_VALUES: Final = re.compile(
    r"://[^/\s:@]*:[^/\s@]+@"  # a URL with a password in it
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)


def redacted(environ: Mapping[str, str], secret_names: Collection[str] = ()) -> dict[str, str]:
    """The variables with `(redacted)` as the value of each that holds a secret (`secret_names`: the variables that do),
    whose name looks like a credential's, or whose value does."""
    return {
        name: REDACTED if name in secret_names or _tells(name, value) else value
        for name, value in environ.items()
    }


def _tells(name: str, value: str) -> bool:
    upper = name.upper()
    parts = upper.split("_")
    return (
        any(_ENDINGS.search(part) for part in parts)
        or (len(parts) > 1 and parts[-1] in _KEYS)
        or any(key in upper for key in _KEY_IDS)
        or _TELLING_VALUES.search(value) is not None
    )
