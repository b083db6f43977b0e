"""Files by which clients of the public APIs find a local service: Google credentials and gsutil's
configuration. Pure.

The credentials are of the form `authorized_user` with a token that is already there. The other form that
would fit, `external_account_authorized_user`, makes google-auth send the token to a host of the public
service in the background ("regional access boundary"), where a local secret has no business.
"""

from typing import Any

from trainshed.buckets.callers import PATH, address_with_key

BOTO_FILE = "boto.cfg"
"""In the data directory, mode 0600: it holds the owner's token."""

_TEXT = """\
# Written by the service at each start; `trainshed env` points BOTO_CONFIG at it.
[Credentials]
gs_json_host = {host}
gs_json_port = {port}
gs_oauth2_refresh_token = {token}

[OAuth2]
client_id = trainshed
client_secret = unused
provider_token_uri = {exchange}

[Boto]
https_validate_certificates = True
ca_certificates_file = {roots}
num_retries = 5

[GSUtil]
prefer_api = json
default_project_id = {project}
check_hashes = if_fast_else_skip
software_update_check_period = 0
"""


_NEVER = "9999-12-31T00:00:00Z"

_UNUSED = "unused"


def boto_document(storage: str, address: str, roots: str, token: str, project: str) -> str:
    """The content of a file for BOTO_CONFIG. `storage`: its URL without TLS; `address`: HOST:PORT where it
    speaks TLS, and `roots` a file of whom to trust then. Holds `token` itself."""
    host, _, port = address.rpartition(":")
    return _TEXT.format(
        host=host,
        port=port,
        token=token,
        # Without TLS: what fetches the token does not read the file of whom to trust.
        exchange=storage + PATH,
        roots=roots,
        project=project,
    )


def credentials_document(token: str, project: str, storage: str = "") -> dict[str, Any]:
    """The content of a credentials file (JSON) for GOOGLE_APPLICATION_CREDENTIALS.

    Holds `token` itself, so the file must be readable by its owner alone. It counts as valid for ever:
    when the service refuses the token, a new file is needed, not a refresh. `project` is the one that
    requests are accounted to. `storage`: its URL, where the file is for clients of storage as well.
    """
    # Google's library in C++ (PyArrow's file system) reads no token and fetches one here: by the key in the
    # address, which opens buckets and nothing else. All others fetch theirs from Google, whatever this says.
    exchange = {"token_uri": address_with_key(storage, token) + PATH} if storage else {}
    return {
        **exchange,
        "type": "authorized_user",
        "token": token,
        "expiry": _NEVER,
        "quota_project_id": project,
        # Readers insist on these three; a refresh with them can only fail, and gives nothing away.
        "client_id": _UNUSED,
        "client_secret": _UNUSED,
        "refresh_token": _UNUSED,
    }
