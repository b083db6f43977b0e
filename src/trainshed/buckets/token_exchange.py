"""A token for a token, in OAuth's way: for clients that hold a refresh token and insist on fetching another for it (gsutil).

What they get is the service's own token again, if it is one: there is nothing to refresh, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs

PATH = "/oauth2/token"
_SECONDS = 3600
"""After so long a client asks again, and learns then that a token counts no more."""


async def exchanged(
    body: bytes, is_known: Callable[[str], Awaitable[bool]]
) -> tuple[int, dict[str, Any]]:
    """(HTTP status, JSON answer) to a form with grant_type=refresh_token. `is_known`: whether a token is one of ours."""
    form = parse_qs(body.decode("utf-8", "replace"))
    if form.get("grant_type") != ["refresh_token"]:
        return 400, {"error": "unsupported_grant_type"}
    token = form.get("refresh_token", [""])[0]
    if not token or not await is_known(token):
        return 400, {
            "error": "invalid_grant",
            "error_description": "This token is not known here. `trainshed env` gives the one of today.",
        }
    return 200, {"access_token": token, "token_type": "Bearer", "expires_in": _SECONDS}
