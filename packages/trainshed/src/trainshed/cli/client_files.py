"""Makes the files by which clients of the public APIs find a local service: Google credentials and gsutil's
configuration. Pure.

The credentials are of the form `authorized_user` with a token that is already there. The other form that
would fit, `external_account_authorized_user`, makes google-auth send the token to a host of the public
service in the background ("regional access boundary"), where a local secret has no business.
"""

from typing import Any

from trainshed.buckets.callers import PATH, address_with_key

BOTO_FILE = "boto.cfg"
"""Name of gsutil's configuration in the data directory. Mode 0600, since it holds the owner's token."""

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
    """Return the content of a file for BOTO_CONFIG. `storage`: the URL of storage without TLS; `address`:
    HOST:PORT where storage speaks TLS; `roots`: a file of authorities to trust there. The content holds
    `token` itself."""
    host, _, port = address.rpartition(":")
    return _TEXT.format(
        host=host,
        port=port,
        token=token,
        # Without TLS, because the code that fetches the token does not read `ca_certificates_file`.
        exchange=storage + PATH,
        roots=roots,
        project=project,
    )


def credentials_document(token: str, project: str, storage: str = "") -> dict[str, Any]:
    """Return the content of a credentials file (JSON) for GOOGLE_APPLICATION_CREDENTIALS.

    It holds `token` itself, so only its owner may be able to read the file. Clients take it for valid for
    ever: if the service refuses the token, a new file is needed, not a refresh. `project`: the project that
    requests are accounted to. `storage`: the URL of storage, if clients of storage use the file as well.
    """
    # Google's C++ library (PyArrow's file system) ignores `token` and fetches one here, by the key in the
    # address, which opens buckets and nothing else. All other clients ignore `token_uri`.
    exchange = {"token_uri": address_with_key(storage, token) + PATH} if storage else {}
    return {
        **exchange,
        "type": "authorized_user",
        "token": token,
        "expiry": _NEVER,
        "quota_project_id": project,
        # Clients require these three. A refresh with them can only fail, and reveals nothing.
        "client_id": _UNUSED,
        "client_secret": _UNUSED,
        "refresh_token": _UNUSED,
    }
