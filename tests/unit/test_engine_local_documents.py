"""Tests of launch documents, which are functions of plan, slot and host (spec/program)."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.fake_devices import fake_devices
from trainshed.core.launch import LaunchPlan, Limits, Software
from trainshed.core.names import JobUid, ReplicaId
from trainshed.engines.launch.documents import (
    HostFacts,
    SharedPaths,
    Where,
    hosts_text,
    intercepted_hosts,
    launch_document,
)
from trainshed.engines.port import ProgramRules, ServiceAccess, Slot
from trainshed.replica import protocol
from trainshed.replica.system import roots

REPLICA = ReplicaId(1, 0)
SLOT = Slot(REPLICA, "local", "host-a", "host-a", "127.64.0.7", 2222)
HOST = HostFacts(protocol.LEVEL_ROOT, {"memory": "/cg/memory", "cpu": "/cg/cpu"}, 8 << 30, "0badcafe")
GROUND = SharedPaths(
    hidden=(Path("/data"),),
    access=ServiceAccess(Path("/data/buckets.sock")),
    ambient={"PIP_INDEX_URL": "http://127.0.0.1/simple", "SECRET": "x", "PATH": "/service"},
)
PLAN = LaunchPlan(
    job_uid=JobUid(5),
    attempt=2,
    replica=REPLICA,
    incarnation=3,
    argv=("python", "-m", "task"),
    environ=(("PATH", "/image/bin"), ("CLOUD_ML_HP_METRIC_FILE", "/var/hypertune/output.metrics")),
    hostname="host-a",
    address="127.64.0.7",
    hosts=(("host-a", "127.64.0.7"), ("host-b", "127.64.0.8")),
    software=Software(path=("/layer/bin",), read_only=("/cache/env", "/cache")),
    limits=Limits(memory=16 << 30),
)


def document(
    host: HostFacts = HOST, plan: LaunchPlan = PLAN, slot: Slot = SLOT, shared: SharedPaths = GROUND
) -> protocol.LaunchDocument:
    where = Where(
        slot=slot,
        host=host,
        directory=Path("/data/slots/5/2/workerpool1-0"),
        hosts=Path("/data/slots/5/2/hosts"),
        logs=Path("/data/logs/5/2/workerpool1-0"),
        shared=shared,
    )
    return launch_document(plan, where)


def test_program_environment_contains_all_variables_of_the_replica() -> None:
    files = "/data/slots/5/2/workerpool1-0/files"
    assert document().program.environ == {
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "PIP_INDEX_URL": "http://127.0.0.1/simple",
        "CLOUD_ML_HP_METRIC_FILE": "/var/hypertune/output.metrics",
        "HOME": files,
        "TMPDIR": "/tmp",
        "PATH": f"{files}/python/bin:/layer/bin:/image/bin",
        "PYTHONUNBUFFERED": "1",
        "PYTHONUSERBASE": f"{files}/python",
        "GCE_METADATA_HOST": "127.64.0.7:2223",
        "GCE_METADATA_IP": "127.64.0.7:2223",
        "GCE_METADATA_ROOT": "127.64.0.7:2223",
        "METADATA_SERVER_DETECTION": "assume-present",
        "HOSTNAME": "host-a",
        "STORAGE_EMULATOR_HOST": "http://127.64.0.7:2223",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": "http://127.64.0.7:2223/storage/v1/",
    }


@pytest.mark.parametrize("level", [HOST.level, protocol.LEVEL_SESSION])
def test_environment_variables_of_the_user_override_those_of_the_service(level: str) -> None:
    """spec/program: a user may set a different home directory. Only HOSTNAME is set by the service, because
    other replicas find the replica by its hostname."""
    chosen = {"HOME": "/gcs/mine", "TMPDIR": "/dev/shm", "PYTHONUNBUFFERED": "0"}
    environ = (*PLAN.environ, *chosen.items(), ("HOSTNAME", "other"))
    made = document(replace(HOST, level=level), replace(PLAN, environ=environ)).program.environ
    assert chosen.items() <= made.items()
    assert made["HOSTNAME"] == "host-a", "it is found by that"


def test_program_paths_are_below_the_replica_directory_without_namespaces() -> None:
    made = document(replace(HOST, level=protocol.LEVEL_SESSION))
    files = "/data/slots/5/2/workerpool1-0/files"
    assert made.isolation.hostname is None
    assert made.program.environ["TMPDIR"] == f"{files}/tmp"
    assert made.program.environ["CLOUD_ML_HP_METRIC_FILE"] == f"{files}/hypertune/output.metrics"


def test_hosts_file_lists_local_replicas_of_the_job_and_hosts_of_other_nodes() -> None:
    peers = (("host-a", "127.64.0.7"), ("host-b", "127.64.0.8"))
    other = replace(SLOT, hostname="host-c", address="127.64.0.9")
    expected = ["127.64.0.7\thost-a", "127.64.0.8\thost-b", "127.64.0.9\thost-c"]
    assert hosts_text([SLOT, other], peers).splitlines()[2:] == expected


CERTIFIED = replace(
    GROUND,
    access=ServiceAccess(
        storage_socket=Path("/data/buckets.sock"),
        rest_socket=Path("/data/programs.sock"),
        grpc_socket=Path("/data/programs-grpc.sock"),
        certificate=Path("/data/tls/relay.pem"),
        trust=Path("/data/trust/roots.pem"),
    ),
)


def test_google_hostnames_resolve_to_the_endpoint_of_the_replica() -> None:
    """Clients that only use these names reach the service, and trust its certificate."""
    names = intercepted_hosts(HOST, CERTIFIED)
    assert {
        "storage.googleapis.com",
        "aiplatform.googleapis.com",
        "europe-west4-aiplatform.googleapis.com",
        "us-central1-ml.googleapis.com",
        "cloudresourcemanager.googleapis.com",
        "iamcredentials.googleapis.com",
        "logging.googleapis.com",
        "secretmanager.googleapis.com",
    } <= set(names)
    text = hosts_text([SLOT], (), names)
    assert "127.63.0.1\tus-east1-aiplatform.googleapis.com\n" in text
    made = document(shared=CERTIFIED)
    assert (made.network.rest_socket, made.network.grpc_socket) == (
        "/data/programs.sock",
        "/data/programs-grpc.sock",
    )
    for name in ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "REQUESTS_CA_BUNDLE", "HTTPLIB2_CA_CERTS"):
        assert made.program.environ[name] == roots.PLACE


def test_google_hostnames_without_a_local_service_are_not_redirected() -> None:
    session = replace(HOST, level=protocol.LEVEL_SESSION)
    assert intercepted_hosts(session, CERTIFIED) == ()
    assert document(session, shared=CERTIFIED).network.certificate is None
    # Without a service, only buckets are available.
    local = intercepted_hosts(
        HOST, replace(CERTIFIED, access=replace(CERTIFIED.access, rest_socket=None, grpc_socket=None))
    )
    storage = {"storage.googleapis.com", "www.googleapis.com"}
    assert set(local) == storage | {"metadata.google.internal", "metadata"}


def test_python_is_mounted_as_a_private_copy_only_if_mounts_are_available() -> None:
    """spec/runtimes: programs may install packages, but never change a Python that they share."""
    files = "/data/slots/5/2/workerpool1-0/files"
    plan = replace(PLAN, software=replace(PLAN.software, template="/elsewhere/template"))
    shared = document(plan=plan)
    environ = shared.program.environ
    assert shared.program.python_template == "/elsewhere/template"
    assert environ["PATH"].startswith("/elsewhere/template/bin:/l")
    assert environ["PYTHONUSERBASE"] == environ["VIRTUAL_ENV"] == "/elsewhere/template"
    assert shared.isolation.read_only == ("/cache", "/cache/env")
    copied = document(replace(HOST, level=protocol.LEVEL_SESSION), plan)
    assert copied.program.python_template == "/elsewhere/template"
    assert copied.program.environ["PATH"].startswith(f"{files}/python/bin:/layer")


def test_gpu_variables_of_a_replica_list_only_the_assigned_gpus() -> None:
    """spec/machines#gpus: Without GPUs, CUDA_VISIBLE_DEVICES is empty (spec/queue#capacity)."""
    gpus = replace(HOST, gpus=fake_devices("Tesla T4", "Tesla T4"))
    names = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")

    def gpu_variables(host: HostFacts, devices: str | None) -> list[str | None]:
        environ = document(host, slot=replace(SLOT, devices=devices)).program.environ
        return [environ.get(name) for name in names]

    assert gpu_variables(gpus, "0,1") == ["0,1", "GPU-00000000,GPU-00000001", "PCI_BUS_ID"]
    assert gpu_variables(gpus, "") == gpu_variables(gpus, None) == gpu_variables(HOST, "") == ["", "", None]
    assert gpu_variables(HOST, None) == [None, None, None]


def test_process_limit_of_a_replica_never_exceeds_the_limit_of_the_machine() -> None:
    half = replace(HOST, processes=16384)
    for setting, host, wanted in (
        (32768, half, 16384),
        (1000, half, 1000),
        (32768, HOST, 32768),
        (0, half, 0),
    ):
        shared = replace(GROUND, rules=ProgramRules(max_processes=setting))
        assert document(host=host, shared=shared).limits.pids_limit == wanted


@pytest.mark.parametrize(
    ("replica", "environ", "port"),
    [
        (REPLICA, {}, 23456),
        (ReplicaId(0, 0), {"MASTER_ADDR": "host-a"}, 23456),
        (ReplicaId(0, 0), {"MASTER_ADDR": "localhost"}, None),
        (ReplicaId(2, 0), {}, None),  # A reducer or parameter server.
        (REPLICA, {"MASTER_ADDR": "localhost"}, None),
        (REPLICA, {"MASTER_ADDR": "host-a"}, None),
        (REPLICA, {"MASTER_ADDR": "127.64.0.8"}, 23456),
        (REPLICA, {"MASTER_PORT": "auto"}, None),
        (REPLICA, {"MASTER_PORT": "29500"}, 29500),
    ],
)
def test_master_port_is_known_only_if_the_master_address_is_the_primary(
    replica: ReplicaId, environ: dict[str, str], port: int | None
) -> None:
    """spec/program#ranks: the port is unknown for a replica without a rank, and if the job sets a different
    master address."""
    variables = {"MASTER_ADDR": "host-b", "MASTER_PORT": "23456"} | environ
    plan = replace(PLAN, replica=replica, environ=(*PLAN.environ, *variables.items()))
    network = document(plan=plan).network
    assert (network.master_port, network.is_primary) == (port, replica.is_primary)
    without = replace(HOST, level=protocol.LEVEL_SESSION)
    assert document(host=without, plan=plan).network.master_port is None
