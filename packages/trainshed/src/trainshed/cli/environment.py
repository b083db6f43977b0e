"""`trainshed env`: prints the environment variables that point gcloud and the client libraries at a service.
This module also creates the files that a service writes for clients: Google credentials, and gsutil's
configuration. For the variables of each official client see spec/clients#recipes."""

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trainshed.access.account_tokens import is_google_access_token
from trainshed.buckets.callers import PATH, address_with_key
from trainshed.cli.connection import Endpoint, connection_options, find_here, with_defaults
from trainshed.cli.output import output_format, print_data

_GCLOUD_APIS = (
    *("AIPLATFORM", "ML", "LOGGING", "CLOUDRESOURCEMANAGER", "IAM", "IAMCREDENTIALS"),
    "SERVICEUSAGE",
    # The service does not implement these APIs. It rejects their calls at once, and Google receives no token
    # of this service.
    *("ARTIFACTREGISTRY", "CLOUDBUILD"),
)

_TRUST = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTPLIB2_CA_CERTS"),
    "NODE_EXTRA_CA_CERTS",
)
"""Variables with the file of authorities that clients in Python, curl and Node trust for https."""

_PROJECT_VARIABLE = "GOOGLE_CLOUD_PROJECT"

BOTO_FILE = "boto.cfg"
"""Name of gsutil's configuration file in the data directory. Its mode is 0600, because it contains the
owner's token."""

# Printed after the variables. If a shell joins the output into one line, the variables must precede the first
# comment.
_NOTES = """\
#
# For this shell:     eval "$(trainshed env)"; in fish: trainshed env | source
# To forget it:       eval "$(trainshed env --unset)"
#
# gcloud              as it is:  gcloud ai custom-jobs list
{sdk}# Vertex AI SDK, REST aiplatform.init(api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
#                                     api_transport="rest")
# Node client         new JobServiceClient({{apiEndpoint, port, authClient}}): host and port of
#                     TRAINSHED_GRPC_ENDPOINT, an OAuth2Client with TRAINSHED_TOKEN as access_token
# API client library  discovery.build("ml", "v1", static_discovery=True, client_options={{
#                                     "api_endpoint": os.environ["TRAINSHED_ENDPOINT"]}})
# Cloud Storage       google.cloud.storage.Client(); gsutil as it is:  gsutil ls
# Other gRPC clients  need no change: the roots file contains public roots and this service's
"""
# Printed before the example for REST if the service has gRPC. Over REST, the SDK converts every response with
# status 409 to the exception Conflict. Over gRPC, it distinguishes the errors.
_SDK_BY_GRPC = """\
# Vertex AI SDK       aiplatform.init(api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
#                                     api_transport="grpc")
"""


def variables(endpoint: Endpoint) -> dict[str, str | None]:
    """Return every variable with its value, or None if the value is unknown."""
    rest, storage = endpoint.rest, endpoint.storage or endpoint.rest
    with_key = address_with_key(storage, endpoint.token) if endpoint.token else storage
    # Each of these variables replaces the system's authorities, so the file `ca_bundle` also contains the
    # system's authorities.
    trusted = (endpoint.ca_bundle or endpoint.ca) if rest.startswith("https:") else None
    return {
        "TRAINSHED_ENDPOINT": rest,
        "TRAINSHED_TOKEN": endpoint.token,
        "TRAINSHED_CA": endpoint.ca if trusted else None,
        **dict.fromkeys(_TRUST, trusted),
        # gRPC with TLS for the Vertex SDK, which requires TLS. gRPC without TLS for clients that allow it.
        "TRAINSHED_GRPC_ENDPOINT": endpoint.grpc_tls,
        "TRAINSHED_GRPC_INSECURE_ENDPOINT": endpoint.grpc,
        # This variable replaces gRPC's own authorities, so the file also contains gRPC's authorities.
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": endpoint.ca_bundle,
        # Without this variable, gcloud sends and renews the token of the user's Google account.
        "CLOUDSDK_AUTH_ACCESS_TOKEN": None if is_google_access_token(endpoint.token) else endpoint.token,
        "CLOUDSDK_CORE_PROJECT": endpoint.project,
        "CLOUDSDK_AI_REGION": endpoint.region,
        # `gcloud ai-platform jobs submit` reads the region from this variable.
        "CLOUDSDK_COMPUTE_REGION": endpoint.region,
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{rest}/" for api in _GCLOUD_APIS},
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{storage}/storage/v1/",
        # `gcloud config set compute/region` checks the region with this API, and crashes offline without this
        # variable.
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{rest}/compute/v1/",
        # Without this variable, `--stream-logs` polls only once a minute.
        "CLOUDSDK_ML_ENGINE_POLLING_INTERVAL": "1",
        # Clients that read this variable send no token, so the address contains a key that identifies the
        # caller.
        "STORAGE_EMULATOR_HOST": with_key,
        # The same address for Google's C++ library, which PyArrow uses. It is set only for a service on this
        # machine, because the library would also send the user's own credentials to other hosts.
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": with_key if endpoint.data else None,
        # Without this variable, each call of gcsfs uses gRPC for up to a minute to check whether a bucket is
        # hierarchical. No bucket here is.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        # The variable is not GOOGLE_CLOUD_PROJECT. With that variable, if init() has no project, the Vertex
        # SDK sends the project and the token to Google's own resource manager, and waits a minute for a
        # response.
        "GCLOUD_PROJECT": endpoint.project,
        "GOOGLE_CLOUD_REGION": endpoint.region,
        "GOOGLE_APPLICATION_CREDENTIALS": (
            str(endpoint.data / "credentials.json") if endpoint.data else None
        ),
        "BOTO_CONFIG": (str(endpoint.data / BOTO_FILE) if endpoint.data and endpoint.storage_tls else None),
        # Without this variable, gcloud's configured file of authorities replaces the file in BOTO_CONFIG.
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": endpoint.ca_bundle or trusted,
        # Without this variable, gcloud's own gsutil uses the account of gcloud's login instead of the
        # credentials in BOTO_CONFIG.
        "CLOUDSDK_CORE_PASS_CREDENTIALS_TO_GSUTIL": "false" if endpoint.storage_tls else None,
    }


def setting_lines(values: Mapping[str, str | None]) -> Iterator[str]:
    """Yield one line per variable that sets the variable in a shell. Variables without a value are
    omitted."""
    for name, value in values.items():
        if value:
            yield f"export {name}={shlex.quote(value)}"


@click.command()
@click.option(
    "--project",
    metavar="PROJECT",
    help="Project to set in the variables. Default: the service's default project.",
)
@click.option(
    "--unset", is_flag=True, help="Print commands that unset the variables instead of setting them."
)
@output_format("text", "Output as commands of a shell, or the variables as JSON or YAML.")
@connection_options
def command(
    *,
    url: str | None,
    token: str | None,
    data: Path | None,
    ca: str | None,
    project: str | None,
    unset: bool,
    form: str,
) -> None:
    """Print variables that point gcloud and the SDKs at the service.

    \b
    In bash and zsh:   eval "$(trainshed env)"
    In fish:           trainshed env | source
    """
    if unset:
        names = variables(Endpoint(rest="", token=""))
        if form == "json":
            print_data(list(names))
        else:
            click.echo("\n".join(f"unset {name}" for name in names))
        return
    # Ignore TRAINSHED_ENDPOINT of this shell, because it may belong to a service that no longer runs.
    endpoint = find_here(url, token, data, ca)
    endpoint = replace(endpoint, project=project or endpoint.project)
    if endpoint.data is None:
        endpoint = with_defaults(endpoint)
    values = variables(endpoint)
    if _PROJECT_VARIABLE in os.environ:
        # This shell has the variable already, perhaps with the project of another service. Print the project
        # of this service.
        values[_PROJECT_VARIABLE] = endpoint.project
    if form == "json":
        print_data({name: value for name, value in values.items() if value})
        return
    click.echo("\n".join(setting_lines(values)))
    sdk = _SDK_BY_GRPC if endpoint.grpc_tls else ""
    click.echo(_NOTES.format(sdk=sdk), nl=False)


_BOTO = """\
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


def boto_document(storage: str, address: str, roots: str, token: str, project: str) -> str:
    """Return the content of a file for BOTO_CONFIG. It contains `token`.

    Args:
        storage: the URL of storage without TLS
        address: HOST:PORT of storage with TLS
        roots: a file of authorities to trust for storage with TLS
    """
    host, _, port = address.rpartition(":")
    # The token is requested without TLS, because the code that requests it does not read
    # `ca_certificates_file`.
    exchange = storage + PATH
    return _BOTO.format(host=host, port=port, token=token, exchange=exchange, roots=roots, project=project)


def credentials_document(token: str, project: str, storage: str) -> dict[str, Any]:
    """Return the content of a credentials file (JSON) for GOOGLE_APPLICATION_CREDENTIALS.

    It has the form `authorized_user` with a token that never expires. The other possible form,
    `external_account_authorized_user`, makes google-auth send the token to a host of the public service in
    the background ("regional access boundary"). A local secret must not leave the machine.

    The content contains `token`, so only its owner may read the file. If the service rejects the token, a new
    file is needed, not a refresh.

    Args:
        project: the project to which requests are accounted
        storage: the URL of storage
    """
    return {
        # Google's C++ library (PyArrow's file system) ignores `token` and requests one at this address. The
        # key in the address gives access only to buckets. All other clients ignore this field.
        "token_uri": address_with_key(storage, token) + PATH,
        "type": "authorized_user",
        "token": token,
        "expiry": _NEVER,
        "quota_project_id": project,
        # Clients require these three fields. A refresh with these values fails, and reveals no secret.
        **dict.fromkeys(("client_id", "client_secret", "refresh_token"), "unused"),
    }
