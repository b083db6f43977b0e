"""The part of a program's environment that only its slot knows. Pure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from trainshed.core.launch import METRIC_FILE, REDUCTION_REPORT_FILE, LaunchPlan
from trainshed.engines.port import Slot
from trainshed.reduction.trainshed_reduction import variables as reduction
from trainshed.replica.endpoint import trainer_status as reports
from trainshed.replica.observe import metrics, reduction_reports
from trainshed.replica.sandbox import view
from trainshed.replica.supervisor import program
from trainshed.replica.system import roots

SANE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_PASSED_ON = frozenset(
    {
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        "PIP_NO_INDEX",
        "PIP_TRUSTED_HOST",
        "PIP_CERT",
        "PIP_CONFIG_FILE",
        "UV_INDEX_URL",
        "UV_EXTRA_INDEX_URL",
        "UV_DEFAULT_INDEX",
        "UV_INDEX",
        "UV_FIND_LINKS",
        "UV_NO_INDEX",
        "TZ",
    }
)
"""All that a program gets of the service's own environment: how to reach the outside, never a secret of
ours."""


IMAGE_COMMANDS = "/opt/trainshed/gsutil"
"""Where container images have the commands that a machine has in `SharedPaths.commands`."""


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


def places(ours: Mapping[str, str]) -> tuple[str, ...]:
    """Absolute paths that the variables passed on name, which programs are to find as the service does."""
    found = (part for name in _PLACES for part in ours.get(name, "").replace(",", " ").split())
    return tuple(dict.fromkeys(part for part in found if part.startswith("/")))


def ambient(ours: Mapping[str, str]) -> dict[str, str]:
    """What a program gets of the service's own environment."""
    passed_on = {name: value for name, value in ours.items() if name in _PASSED_ON}
    return {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"} | passed_on


def storage(place: str) -> dict[str, str]:
    """What points the clients of gs:// at the replica's own endpoint, which adds the job's identity
    (spec/program#storage, spec/clients#inside-jobs). The job may say otherwise. `place`: ADDRESS:PORT."""
    endpoint = f"http://{place}"
    return {
        "STORAGE_EMULATOR_HOST": endpoint,
        # Otherwise gcsfs asks another service about each bucket, by a channel that nobody serves.
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{endpoint}/storage/v1/",
        # Default credentials: the endpoint is the metadata server of one machine with one account, the job's.
        "GCE_METADATA_HOST": place,
        "GCE_METADATA_IP": place,
        "GCE_METADATA_ROOT": place,
        "METADATA_SERVER_DETECTION": "assume-present",
    }


def gcloud(rest: str) -> dict[str, str]:
    """What points gcloud at the service where nothing else does: at the level without namespaces Google's
    names lead to Google. The client libraries know no such variable. `rest`: the service's URL."""
    apis = ("AIPLATFORM", "ML", "LOGGING", "CLOUDRESOURCEMANAGER")
    return {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{rest}/" for api in apis}


def trust() -> dict[str, str]:
    """Whom clients are to believe that they speak to Google, for those that bring roots of their own
    (Python's, gRPC's, gcloud's, Node's): the rest finds the same file by its place."""
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


def trainer_status(plan: LaunchPlan) -> dict[str, str]:
    """What tells a program how to report how far it is, by Kubeflow Trainer's protocol, which Hugging
    Face's Trainer speaks by itself (spec/program#progress). The job may say otherwise."""
    way = reports.path(quote(plan.account.project, safe=""), str(plan.job_uid))
    return {
        "KUBEFLOW_TRAINER_SERVER_URL": f"https://{reports.HOST}{way}",
        "KUBEFLOW_TRAINER_SERVER_CA_CERT": roots.PLACE,
        "KUBEFLOW_TRAINER_SERVER_TOKEN": f"{view.HYPERTUNE}/{program.TRAINER_TOKEN}",
    }


def past_proxies(ours: Mapping[str, str], hosts: Sequence[str]) -> dict[str, str]:
    """NO_PROXY with `hosts` added, where a proxy is passed on: a proxy cannot reach what is the replica's
    own."""
    if not any(name.lower() in ("http_proxy", "https_proxy") for name in ours):
        return {}
    said = ours.get("no_proxy") or ours.get("NO_PROXY") or ""
    text = ",".join([*filter(None, said.split(",")), *hosts])
    return {"NO_PROXY": text, "no_proxy": text}


def reducer_threads(plan: LaunchPlan, processors: float) -> dict[str, str]:
    """How many threads a reducer has: one for each of its vCPUs, and no more than there are
    `processors` here (0 = not known). Nothing for other replicas."""
    if reduction.LISTEN not in dict(plan.environ):
        return {}
    vcpus = min(plan.limits.cpu_weight / 100, reduction.MOST_THREADS)
    return {reduction.THREADS: str(max(1, int(min(vcpus, processors or vcpus))))}


def lost_reducers(plan: LaunchPlan, path: str) -> dict[str, str]:
    """Where a worker reads which reducers it is to do without."""
    image = plan.software.image
    is_shown = image is not None and bool(image.directory)
    if is_shown or reduction.LOST_FILE not in dict(plan.environ):
        return {}
    return {reduction.LOST_FILE: path}


def of_slot(
    plan: LaunchPlan, slot: Slot, files: Path, *, namespaced: bool, commands: str = ""
) -> dict[str, str]:
    """What only the slot knows; wins over the plan's own, but for what a job may choose for itself.
    `commands`: a directory with commands of ours in `bin`."""
    asked = dict(plan.environ)
    unbuffered = asked.get("PYTHONUNBUFFERED", "1")
    if plan.software.image is not None:
        # The rest is the image's own.
        # Behind all that is the image's: its own gsutil is the one that is meant.
        path = [asked.get("PATH", SANE_PATH), *(f"{place}/bin" for place in (commands,) if place)]
        own = {"PATH": ":".join(path), "PYTHONUNBUFFERED": unbuffered, "HOSTNAME": slot.hostname}
        return own | ({} if namespaced else _own_reports(files, asked))
    # Where mounts can protect it the template itself is used; what a program installs goes to the user base.
    home, user_base = str(files), f"{files}/{program.PYTHON_USER}"
    template = plan.software.template if namespaced else f"{files}/{program.PYTHON}"
    own = [user_base] + [template] * bool(plan.software.template)
    # Before what the machine has: a gsutil there knows nothing of the job, and one that a job installs is the
    # one it means.
    ours = [commands] if commands else []
    path = [
        *(f"{place}/bin" for place in own),
        *plan.software.path,
        *(f"{place}/bin" for place in ours),
        asked.get("PATH", SANE_PATH),
    ]
    # A short name where there is a private /tmp: sockets in it have room for about 100 characters.
    environ = {
        "HOME": asked.get("HOME", home),
        "TMPDIR": asked.get("TMPDIR", "/tmp" if namespaced else f"{files}/{program.TEMPORARY}"),
        "PATH": ":".join(path),
        "PYTHONUNBUFFERED": unbuffered,
        "PYTHONUSERBASE": user_base,
        "HOSTNAME": slot.hostname,
    }
    return environ if namespaced else environ | _own_reports(files, asked)


def _own_reports(files: Path, asked: Mapping[str, str]) -> dict[str, str]:
    """Where /var/hypertune cannot be shown to one replica alone."""
    own = {
        METRIC_FILE: metrics.PROGRAM_FILE,
        REDUCTION_REPORT_FILE: reduction_reports.PROGRAM_FILE,
    }
    return {name: str(files / program.HYPERTUNE / own[name]) for name in own.keys() & asked.keys()}
