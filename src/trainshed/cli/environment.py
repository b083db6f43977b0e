"""`trainshed env`: the variables that point gcloud and the client libraries at the service.

The recipes are those of the official clients (spec/clients#recipes). They are printed; nothing is set here.
"""

import enum
import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import assert_never

import click

from trainshed.buckets.callers import address_with_key
from trainshed.cli.client_files import BOTO_FILE
from trainshed.cli.connection import (
    Endpoint,
    answering,
    data_directory,
    local,
    remote,
    takes_address,
)
from trainshed.cli.output_format import output_format, print_data


class Shell(enum.StrEnum):
    """Whose syntax is printed. SH: bash, zsh and every other POSIX shell."""

    SH = "sh"
    FISH = "fish"
    POWERSHELL = "powershell"


_GCLOUD_APIS = ("AIPLATFORM", "ML", "LOGGING", "CLOUDRESOURCEMANAGER")

_TRUST = (
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "HTTPLIB2_CA_CERTS",
    "NODE_EXTRA_CA_CERTS",
)
"""By which clients in Python, curl and Node are told whom to trust over https."""

_LOUD_PROJECT = "GOOGLE_CLOUD_PROJECT"

_USE = {
    Shell.SH: 'eval "$(trainshed env)"',
    Shell.FISH: "trainshed env --shell fish | source",
    Shell.POWERSHELL: "trainshed env --shell powershell | Out-String | Invoke-Expression",
}

# Behind the variables and not before: a shell that is given all of it as one line reads them first.
_NOTES = """\
#
# For this shell:     {use}
# To forget it:       the same with --unset
#
# gcloud              as it is:  gcloud ai custom-jobs list
# Vertex AI SDK       aiplatform.init(api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
#                                     api_transport="rest")
#  over gRPC          aiplatform.init(api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
#                                     api_transport="grpc")
# Node client         new JobServiceClient({{apiEndpoint, port, authClient}}): host and port of
#                     TRAINSHED_GRPC_ENDPOINT, an OAuth2Client with TRAINSHED_TOKEN as access_token
# API client library  discovery.build("ml", "v1", static_discovery=True, client_options={{
#                                     "api_endpoint": os.environ["TRAINSHED_ENDPOINT"]}})
# Cloud Storage       google.cloud.storage.Client(); gsutil as it is:  gsutil ls
# Other gRPC clients  go on as they are: the roots file holds everybody's roots, and this service's
"""


def variables(endpoint: Endpoint) -> dict[str, str]:
    """Every variable with its value, "" where that is not known."""
    rest, storage = endpoint.rest, endpoint.storage or endpoint.rest
    with_key = address_with_key(storage, endpoint.token) if endpoint.token else storage
    # Each takes the place of all other roots, and holds those too.
    trusted = (endpoint.roots or endpoint.ca) if rest.startswith("https:") else ""
    return {
        "TRAINSHED_ENDPOINT": rest,
        "TRAINSHED_TOKEN": endpoint.token,
        "TRAINSHED_CA": endpoint.ca if trusted else "",
        **dict.fromkeys(_TRUST, trusted),
        # With TLS, which is all that the Vertex SDK speaks over gRPC; and without, for clients that are told
        # so.
        "TRAINSHED_GRPC_ENDPOINT": endpoint.grpc_tls,
        "TRAINSHED_GRPC_INSECURE_ENDPOINT": endpoint.grpc,
        # Takes the place of all other roots: the file holds those too, or the client would trust nobody else.
        "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": endpoint.roots,
        "CLOUDSDK_AUTH_ACCESS_TOKEN": endpoint.token,
        "CLOUDSDK_CORE_PROJECT": endpoint.project,
        "CLOUDSDK_AI_REGION": endpoint.region,
        # Where `gcloud ai-platform jobs submit` looks for a region.
        "CLOUDSDK_COMPUTE_REGION": endpoint.region,
        **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{rest}/" for api in _GCLOUD_APIS},
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{storage}/storage/v1/",
        # `--stream-logs` would look for new lines once a minute.
        "CLOUDSDK_ML_ENGINE_POLLING_INTERVAL": "1",
        # The clients that this is for send no token where it is set: the address says who they are.
        "STORAGE_EMULATOR_HOST": with_key,
        # The same for Google's library in C++, which PyArrow has; not where it would send the user's own
        # credentials with it.
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": with_key if endpoint.data else "",
        # Else gcsfs asks over gRPC, for a minute at each call, whether a bucket is of a kind that there is
        # not here.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        # And not GOOGLE_CLOUD_PROJECT: where that is set and init() is given no project, the Vertex SDK takes
        # it to Google's own resource manager, token and all, and waits a minute for an answer.
        "GCLOUD_PROJECT": endpoint.project,
        "GOOGLE_CLOUD_REGION": endpoint.region,
        "GOOGLE_APPLICATION_CREDENTIALS": (
            str(endpoint.data / "credentials.json") if endpoint.data else ""
        ),
        "BOTO_CONFIG": (
            str(endpoint.data / BOTO_FILE) if endpoint.data and endpoint.storage_tls else ""
        ),
        # Else a file that gcloud was once told takes the place of the one in gsutil's configuration.
        "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE": endpoint.roots or trusted,
        # gcloud's own gsutil would else put the credentials of whoever is logged in in the place of the
        # file's.
        "CLOUDSDK_CORE_PASS_CREDENTIALS_TO_GSUTIL": "false" if endpoint.storage_tls else "",
    }


def setting(values: dict[str, str], shell: Shell) -> Iterator[str]:
    """A line per variable that sets it in `shell`; those without a value are passed over."""
    for name, value in values.items():
        if not value:
            continue
        match shell:
            case Shell.SH:
                yield f"export {name}={shlex.quote(value)}"
            case Shell.FISH:
                escaped = value.replace("\\", "\\\\").replace("'", "\\'")
                yield f"set -gx {name} '{escaped}'"
            case Shell.POWERSHELL:
                escaped = value.replace("'", "''")
                yield f"$env:{name} = '{escaped}'"
            case _:
                assert_never(shell)


def unsetting(names: Iterable[str], shell: Shell) -> Iterator[str]:
    """A line per variable that removes it in `shell`."""
    for name in names:
        match shell:
            case Shell.SH:
                yield f"unset {name}"
            case Shell.FISH:
                yield f"set -e {name}"
            case Shell.POWERSHELL:
                yield f"Remove-Item Env:{name} -ErrorAction SilentlyContinue"
            case _:
                assert_never(shell)


@click.command()
@click.option(
    "--shell",
    type=click.Choice([shell.value for shell in Shell]),
    default=Shell.SH.value,
    show_default=True,
    help="Shell syntax to print; sh suits bash and zsh.",
)
@click.option("--unset", is_flag=True, help="Print commands that remove the variables again.")
@output_format("text", "Output as a shell's commands, or the variables as JSON or YAML.")
@takes_address
def command(
    *,
    url: str | None,
    token: str | None,
    data: Path | None,
    ca: str | None,
    shell: str,
    unset: bool,
    form: str,
) -> None:
    """Print variables that point gcloud and the SDKs at the service.

    \b
    In bash and zsh:   eval "$(trainshed env)"
    """
    chosen = Shell(shell)
    if unset:
        names = variables(Endpoint(rest="", token=""))
        if form == "json":
            print_data(list(names))
        else:
            click.echo("\n".join(unsetting(names, chosen)))
        return
    # What this shell was given before is not asked: it may be of a service that has ended.
    endpoint = (
        answering(remote(url, token, "Check the address that --url gives.", ca))
        if url
        else local(data_directory(data), token)
    )
    values = variables(endpoint)
    if _LOUD_PROJECT in os.environ:
        # A shell that has it would else go on with the project of somewhere else.
        values[_LOUD_PROJECT] = endpoint.project
    if form == "json":
        print_data({name: value for name, value in values.items() if value})
        return
    click.echo("\n".join(setting(values, chosen)))
    click.echo(_NOTES.format(use=_USE[chosen]), nl=False)
