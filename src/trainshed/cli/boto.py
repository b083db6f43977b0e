"""The configuration file by which gsutil, which knows no other way, finds a local service. Pure."""

from trainshed.buckets.token_exchange import PATH

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


def boto_document(storage: str, address: str, roots: str, token: str, project: str) -> str:
    """The content of a file for BOTO_CONFIG. `storage`: its URL without TLS; `address`: HOST:PORT where it speaks TLS, and
    `roots` a file of whom to trust then. Holds `token` itself."""
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
