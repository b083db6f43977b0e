"""Application default credentials for clients of a local service. Pure.

The form is `authorized_user` with a token that is already there. The other form that would fit,
`external_account_authorized_user`, makes google-auth send the token to a host of the public service in
the background ("regional access boundary"), where a local secret has no business.
"""

from typing import Any

_NEVER = "9999-12-31T00:00:00Z"
_UNUSED = "unused"


def credentials_document(token: str, project: str) -> dict[str, Any]:
    """The content of a credentials file (JSON) for GOOGLE_APPLICATION_CREDENTIALS.

    Holds `token` itself, so the file must be readable by its owner alone. It counts as valid for ever:
    when the service refuses the token, a new file is needed, not a refresh. `project` is the one that
    requests are accounted to.
    """
    return {
        "type": "authorized_user",
        "token": token,
        "expiry": _NEVER,
        "quota_project_id": project,
        # Readers insist on these three; a refresh with them can only fail, and gives nothing away.
        "client_id": _UNUSED,
        "client_secret": _UNUSED,
        "refresh_token": _UNUSED,
    }
