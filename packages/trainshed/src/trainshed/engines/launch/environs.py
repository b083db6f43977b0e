"""Makes a program's environment: `of_program` is the one place where all of it comes together. Pure.

Who sets what, and where; later ones win over earlier ones, but for what is said:

- the service's own environment (`ambient`): LANG LC_ALL TZ *_PROXY *_proxy SSL_CERT_* REQUESTS_CA_BUNDLE
  CURL_CA_BUNDLE PIP_* UV_*
- the replica's endpoint (`storage`): STORAGE_EMULATOR_HOST GCE_METADATA_* METADATA_SERVER_DETECTION
  GCSFS_* CLOUDSDK_API_ENDPOINT_OVERRIDES_*
- the interception of Google's hosts (`trust`): CURL_CA_BUNDLE SSL_CERT_FILE REQUESTS_CA_BUNDLE
  HTTPLIB2_CA_CERTS
  GRPC_DEFAULT_SSL_ROOTS_FILE_PATH CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE NODE_EXTRA_CA_CERTS
- the machine's processors (`reducer_threads`): TRAINSHED_REDUCTION_THREADS
- a proxy that is passed on, with our own places (`past_proxies`): NO_PROXY no_proxy
- the author of a container image (`core.environment`): whatever it names
- the job, as on the public services (`core.environment`): CLOUD_ML_* GOOGLE_CLOUD_PROJECT AIP_*
  CUDA_VISIBLE_DEVICES PYTHONUNBUFFERED, and what its framework's older version took (`old_ways`)
- the gang (`core.environment`): CLUSTER_SPEC TF_CONFIG MASTER_ADDR MASTER_PORT RANK WORLD_SIZE
- the job's `env` (`core.environment`): whatever it names
- the metrics file and reducers (`core.environment`): CLOUD_ML_HP_METRIC_FILE
  TRAINSHED_REDUCTION* PYTHONPATH
- the slot (`of_slot`): HOME TMPDIR PATH PYTHONUSERBASE PYTHONUNBUFFERED HOSTNAME, of which
  the job's own HOME, TMPDIR and PYTHONUNBUFFERED win, and its PATH follows
- the slot's GPUs (`driver`): CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES LD_LIBRARY_PATH
- the stall watchdog, unless it is set (`replica.supervisor.main_process`): PYTHONFAULTHANDLER
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from trainshed.core.launch import METRIC_FILE, REDUCTION_REPORT_FILE, LaunchPlan
from trainshed.engines.launch.devices import DeviceEdits
from trainshed.engines.launch.where import Where
from trainshed.engines.port import Slot
from trainshed.replica.observe import metrics, reduction_reports
from trainshed.replica.supervisor import program
from trainshed.replica.system import roots
from trainshed_reduction import variables as reduction

SANE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PLACES = (
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
    "PIP_FIND_LINKS",
    "UV_FIND_LINKS",
)
"""Variables of the service's own environment that have paths in them."""
_PASSED_ON = frozenset(
    {
        *_PLACES,
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_NO_INDEX",
        "PIP_TRUSTED_HOST",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_NO_INDEX",
        "TZ",
    }
)
"""All that a program gets of the service's own environment: how to reach the outside, never a secret of
ours."""


def places(ours: Mapping[str, str]) -> tuple[str, ...]:
    """Return the absolute paths in the variables that are passed on, which programs have to find where the
    service does."""
    parts = (part for name in _PLACES for part in ours.get(name, "").replace(",", " ").split())
    return tuple(dict.fromkeys(part for part in parts if part.startswith("/")))


def of_program(plan: LaunchPlan, where: Where, edits: DeviceEdits) -> dict[str, str]:
    """Return all variables of a program. `edits`: what it gets for its GPUs."""
    slot, host, access = where.slot, where.host, where.shared.access
    own_address, own_port = where.endpoint
    variables = ambient(where.shared.ambient or {})
    ours = ["localhost", "127.0.0.1", own_address, slot.address]
    if access.storage_socket:
        variables |= storage(f"{own_address}:{own_port}")
    if names := where.intercepted:
        ours += names
        variables |= trust()
    if plan.reduction.packages:
        variables |= reducer_threads(plan, host.processors)
    variables |= past_proxies(variables, ours)
    variables |= dict(plan.environ)
    variables |= of_slot(plan, slot, where.files, namespaced=host.namespaced)
    variables |= edits.environ
    for name, parts in (
        ("LD_LIBRARY_PATH", (*edits.library_path, variables.get("LD_LIBRARY_PATH", ""))),
        ("PATH", (variables["PATH"], *edits.path)),
    ):
        if joined := ":".join(filter(None, parts)):
            variables[name] = joined
    return variables


def ambient(ours: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the service's own environment that a program gets."""
    passed_on = {name: value for name, value in ours.items() if name in _PASSED_ON}
    return {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"} | passed_on


def storage(place: str) -> dict[str, str]:
    """Return the variables that point the clients of gs:// at the replica's own endpoint, which adds the
    job's identity (spec/program#storage, spec/clients#inside-jobs). The job's own values win. `place`:
    ADDRESS:PORT."""
    endpoint = f"http://{place}"
    return {
        "STORAGE_EMULATOR_HOST": endpoint,
        # Otherwise gcsfs asks the Storage Control service about each bucket, over gRPC, which nothing serves
        # here.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{endpoint}/storage/v1/",
        # Application Default Credentials come from the endpoint, which acts as the metadata server of a
        # machine with the job's account.
        "GCE_METADATA_HOST": place,
        "GCE_METADATA_IP": place,
        "GCE_METADATA_ROOT": place,
        "METADATA_SERVER_DETECTION": "assume-present",
    }


def trust() -> dict[str, str]:
    """Return the variables that name the trusted authorities to clients with their own root certificates
    (Python's, gRPC's, gcloud's, Node's); the others find the same file at its usual path."""
    return dict.fromkeys(
        (
            "CURL_CA_BUNDLE",
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "HTTPLIB2_CA_CERTS",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
            "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
            "NODE_EXTRA_CA_CERTS",
        ),
        roots.PLACE,
    )


def past_proxies(ours: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """Return NO_PROXY with `hosts` added if a proxy is passed on: a proxy cannot reach the replica's own
    endpoint."""
    if not any(name.lower() in ("http_proxy", "https_proxy") for name in ours):
        return {}
    without = ours.get("no_proxy") or ours.get("NO_PROXY") or ""
    text = ",".join([*filter(None, without.split(",")), *hosts])
    return {"NO_PROXY": text, "no_proxy": text}


def reducer_threads(plan: LaunchPlan, processors: float | None) -> dict[str, str]:
    """Return the variable that sets a reducer's threads: one per vCPU, and at most the machine's
    `processors` (None = not known). Empty for other replicas."""
    if reduction.LISTEN not in dict(plan.environ):
        return {}
    vcpus = min((plan.limits.cpu_weight or 0) / 100, reduction.MOST_THREADS)
    return {reduction.THREADS: str(max(1, int(min(vcpus, processors or vcpus))))}


def of_slot(plan: LaunchPlan, slot: Slot, files: Path, *, namespaced: bool) -> dict[str, str]:
    """Return the variables that only the slot knows. They win over the plan's own, except where the job may
    choose."""
    chosen = dict(plan.environ)
    environ: dict[str, str] = {} if namespaced else _own_reports(files, chosen)
    environ |= {"PYTHONUNBUFFERED": chosen.get("PYTHONUNBUFFERED", "1"), "HOSTNAME": slot.hostname}
    if plan.software.image is not None:
        # The image sets everything else.
        return environ | {"PATH": chosen.get("PATH", SANE_PATH)}
    # Where mounts can protect the environment it is used in place; what a program installs goes to the user
    # base.
    home, user_base = str(files), f"{files}/{program.PYTHON_USER}"
    template = plan.software.template if namespaced else f"{files}/{program.PYTHON}"
    own = [user_base] + [template] * bool(plan.software.template)
    path = [*(f"{place}/bin" for place in own), *plan.software.path, chosen.get("PATH", SANE_PATH)]
    # A short path where there is a private /tmp: paths of Unix sockets are limited to about 100 characters.
    return environ | {
        "HOME": chosen.get("HOME", home),
        "TMPDIR": chosen.get("TMPDIR", "/tmp" if namespaced else f"{files}/{program.TEMPORARY}"),
        "PATH": ":".join(path),
        "PYTHONUSERBASE": user_base,
    }


def _own_reports(files: Path, chosen: Mapping[str, str]) -> dict[str, str]:
    """Return where cloudml-hypertune writes, if /var/hypertune cannot be mounted for one replica alone."""
    own = {METRIC_FILE: metrics.PROGRAM_FILE, REDUCTION_REPORT_FILE: reduction_reports.PROGRAM_FILE}
    return {name: str(files / program.HYPERTUNE / own[name]) for name in own.keys() & chosen.keys()}
