"""How clients of the public APIs find a service: `trainshed env` prints the variables that point gcloud and
the client libraries at it. Also the content of the files that a service writes for them: Google credentials,
and gsutil's configuration.

Which variables each official client needs is in spec/clients#recipes. They are printed; nothing is set here.
"""

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from trainshed.access.account_tokens import is_access_token
from trainshed.buckets.callers import PATH, address_with_key
from trainshed.cli.connection import Endpoint, answering, find_here, takes_address
from trainshed.cli.output import output_format, print_data

_GCLOUD_APIS = (
    *("AIPLATFORM", "ML", "LOGGING", "CLOUDRESOURCEMANAGER", "IAM", "IAMCREDENTIALS"),
    "SERVICEUSAGE",
    # Not served: refused here at once, and Google gets no token of this service.
    *("ARTIFACTREGISTRY", "CLOUDBUILD"),
)

_TRUST = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "HTTPLIB2_CA_CERTS"),
    "NODE_EXTRA_CA_CERTS",
)
"""Variables that tell clients in Python, curl and Node which authorities to trust for https."""

_LOUD_PROJECT = "GOOGLE_CLOUD_PROJECT"

BOTO_FILE = "boto.cfg"
"""Name of gsutil's configuration in the data directory. Mode 0600, since it holds the owner's token."""

# Printed after the variables: a shell that gets everything as one line has read them before the first
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
# Other gRPC clients  go on as they are: the roots file holds everybody's roots, and this service's
"""
# First where it is served: over REST the SDK takes every answer of 409 for a Conflict.
_SDK_BY_GRPC = """\
# Vertex AI SDK       aiplatform.init(api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
#                                     api_transport="grpc")
"""


def variables(endpoint: Endpoint) -> dict[str, str | None]:
    """Return every variable with its value; None = not known."""
    rest, storage = endpoint.rest, endpoint.storage or endpoint.rest
    with_key = address_with_key(storage, endpoint.token) if endpoint.token else storage
    # Each of these variables replaces the system's authorities; the file `ca_bundle` holds those as well.
    trusted = (endpoint.ca_bundle or endpoint.ca) if rest.startswith("https:") else None
    return {
        "TRAINSHED_ENDPOINT": rest,
        "TRAINSHED_TOKEN": endpoint.token,
        "TRAINSHED_CA": endpoint.ca if trusted else None,
        **dict.fromkeys(_TRUST, trusted),
        # With TLS, because the Vertex SDK speaks gRPC only so; and without, for clients that can be told.
        "TRAINSHED_GRPC_ENDPOINT": endpoint.grpc_tls,
        "TRAINSHED_GRPC_INSECURE_ENDPOINT": endpoint.grpc,
        # It replaces gRPC's own authorities, so the file holds those as well.
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": endpoint.ca_bundle,
        # One of gcloud's own user it shows by itself, and renews.
        "CLOUDSDK_AUTH_ACCESS_TOKEN": None if is_access_token(endpoint.token) else endpoint.token,
        "CLOUDSDK_CORE_PROJECT": endpoint.project,
        "CLOUDSDK_AI_REGION": endpoint.region,
        # `gcloud ai-platform jobs submit` takes the region from here.
        "CLOUDSDK_COMPUTE_REGION": endpoint.region,
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{rest}/" for api in _GCLOUD_APIS},
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{storage}/storage/v1/",
        # `gcloud config set compute/region` asks there whether the region exists, and crashes offline.
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{rest}/compute/v1/",
        # Otherwise `--stream-logs` looks for new lines only once a minute.
        "CLOUDSDK_ML_ENGINE_POLLING_INTERVAL": "1",
        # Clients that read it send no token, so the address has a key that identifies the caller.
        "STORAGE_EMULATOR_HOST": with_key,
        # The same for Google's C++ library, which PyArrow uses. Only for a service on this machine: elsewhere
        # the library would send the user's own credentials along.
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": with_key if endpoint.data else None,
        # Otherwise gcsfs asks over gRPC, for a minute at each call, whether a bucket is of a kind that does
        # not exist here.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        # Not GOOGLE_CLOUD_PROJECT: if that is set and init() gets no project, the Vertex SDK sends it with
        # the token to Google's own resource manager, and waits a minute for an answer.
        "GCLOUD_PROJECT": endpoint.project,
        "GOOGLE_CLOUD_REGION": endpoint.region,
        "GOOGLE_APPLICATION_CREDENTIALS": (
            str(endpoint.data / "credentials.json") if endpoint.data else None
        ),
        "BOTO_CONFIG": (
            str(endpoint.data / BOTO_FILE) if endpoint.data and endpoint.storage_tls else None
        ),
        # Otherwise a file of authorities that gcloud is configured with replaces the one in BOTO_CONFIG.
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": endpoint.ca_bundle or trusted,
        # Otherwise gcloud's own gsutil uses the account that is logged in, not the credentials of
        # BOTO_CONFIG.
        "CLOUDSDK_CORE_PASS_CREDENTIALS_TO_GSUTIL": "false" if endpoint.storage_tls else None,
    }


def setting(values: Mapping[str, str | None]) -> Iterator[str]:
    """Yield a line per variable that sets it in a shell. Variables without a value are left out."""
    for name, value in values.items():
        if value:
            yield f"export {name}={shlex.quote(value)}"


@click.command()
@click.option("--project", metavar="PROJECT", help="Their project. Default: the service's.")
@click.option("--unset", is_flag=True, help="Print commands that remove the variables again.")
@output_format("text", "Output as a shell's commands, or the variables as JSON or YAML.")
@takes_address
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
    # Variables that this shell has already are ignored: they may be of a service that has ended.
    endpoint = find_here(url, token, data, ca)
    endpoint = replace(endpoint, project=project or endpoint.project)
    if endpoint.data is None:
        endpoint = answering(endpoint)
    values = variables(endpoint)
    if _LOUD_PROJECT in os.environ:
        # Otherwise a shell in which it is set goes on with the project of another service.
        values[_LOUD_PROJECT] = endpoint.project
    if form == "json":
        print_data({name: value for name, value in values.items() if value})
        return
    click.echo("\n".join(setting(values)))
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
    """Return the content of a file for BOTO_CONFIG. `storage`: the URL of storage without TLS; `address`:
    HOST:PORT where storage speaks TLS; `roots`: a file of authorities to trust there. The content holds
    `token` itself."""
    host, _, port = address.rpartition(":")
    # Without TLS, because the code that fetches the token does not read `ca_certificates_file`.
    exchange = storage + PATH
    return _BOTO.format(
        host=host, port=port, token=token, exchange=exchange, roots=roots, project=project
    )


def credentials_document(token: str, project: str, storage: str) -> dict[str, Any]:
    """Return the content of a credentials file (JSON) for GOOGLE_APPLICATION_CREDENTIALS.

    It is of the form `authorized_user` with a token that is already there. The other form that would fit,
    `external_account_authorized_user`, makes google-auth send the token to a host of the public service in
    the background ("regional access boundary"), where a local secret has no business.

    It holds `token` itself, so only its owner may be able to read the file. Clients take it for valid for
    ever: if the service refuses the token, a new file is needed, not a refresh. `project`: the project that
    requests are accounted to. `storage`: the URL of storage.
    """
    return {
        # Google's C++ library (PyArrow's file system) ignores `token` and fetches one here, by the key in the
        # address, which opens buckets and nothing else. All other clients ignore it.
        "token_uri": address_with_key(storage, token) + PATH,
        "type": "authorized_user",
        "token": token,
        "expiry": _NEVER,
        "quota_project_id": project,
        # Clients require these three. A refresh with them can only fail, and reveals nothing.
        **dict.fromkeys(("client_id", "client_secret", "refresh_token"), "unused"),
    }
