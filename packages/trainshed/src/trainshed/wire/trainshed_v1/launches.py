"""Records of how a replica's program was started: what was asked for, and what it got."""

from collections.abc import Mapping
from typing import Any

from trainshed.wire.trainshed_v1.record import Record


class Runtime(Record, frozen=True):
    """What a program runs in."""

    #: Such as "scikit-learn"; "container" = the image as it is.
    family: str = ""
    #: Version of the framework; "" for plain Python and containers.
    version: str = ""
    #: Such as "3.10"; "" for a container.
    python_version: str = ""
    #: The image that is run; "" = an environment of the service.
    image: str = ""
    #: What was asked for and what is given instead.
    notices: tuple[str, ...] = ()


class LaunchMachine(Record, frozen=True):
    """The machine of a replica: what its type has, and what applies here."""

    #: Machine type, such as "n1-standard-4".
    type: str = ""
    #: Processors that the type has.
    vcpus: float = 0.0
    #: Memory that the type has.
    memory_bytes: int = 0
    #: Memory that the program may use; 0 = no limit, or it has not started.
    memory_limit_bytes: int = 0
    #: Disk that was asked for, or the default.
    disk_bytes: int = 0
    #: Processes and threads; 0 = no limit, or it has not started.
    process_limit: int = 0
    #: Type of its accelerators; "" = it has none.
    accelerator: str = ""
    accelerator_count: int = 0
    #: Uuids of the GPUs that are its own.
    gpus: tuple[str, ...] = ()


class Launch(Record, frozen=True):
    """How the newest incarnation of a replica in an attempt was started. For one that has not started: what
    is known before, which is runtime, machine and time limits."""

    #: Full name of the job.
    name: str = ""
    attempt: int = 0
    #: Id of the replica, such as "workerpool0-0".
    replica: str = ""
    #: The replica as the job's log calls it.
    task: str = ""
    #: "" for an earlier attempt, whose node is not known.
    node: str = ""
    #: 0 = it has not started.
    incarnation: int = 0
    #: "" = it has not started.
    start_time: str = ""
    runtime: Runtime = Runtime()
    machine: LaunchMachine = LaunchMachine()
    #: gs:// names of the packages, in the order in which they were installed.
    packages: tuple[str, ...] = ()
    #: Digest of the image, the module or command and the content of the packages: the same for jobs that run
    #: the same code, whatever their arguments.
    code: str = ""
    #: The program and its arguments; longer ones are cut at 16 KiB.
    command: tuple[str, ...] = ()
    #: Directory in which it started; "" = its own working directory.
    directory: str = ""
    #: Names of all its environment variables.
    variables: tuple[str, ...] = ()
    #: Values of those that say where it is and what it may use.
    values: Mapping[str, str] = {}
    #: CLUSTER_SPEC without the job: `cluster` and `task`; null if there is none.
    cluster_spec: Mapping[str, Any] | None = None
    #: "" = the machine's.
    hostname: str = ""
    #: "" = the machine's.
    address: str = ""
    #: Level of isolation (docs/security.md).
    isolation: str = ""
    #: Id of the user that it ran as; null = the service's own.
    user: int | None = None
    #: Seconds that the job may run.
    timeout_seconds: float = 0.0
    #: Account whose credentials the program finds.
    service_account: str = ""
