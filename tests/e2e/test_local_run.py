"""`trainshed local-run`: a program in the environment of a replica, without a service
(spec/program#local-runs; facts/packaging#autopackaging)."""

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.ordinary_user import NOBODY, as_root_only, run_as_nobody
from tests.contract.runtimes.podman import podman, storage
from tests.contract.runtimes.rootfs import with_programs
from tests.e2e import nursery
from tests.e2e.processes import leftovers, marked, new_mark, wait_until_gone
from tests.e2e.running import (
    PROJECT,
    SKLEARN,
    cache_of,
    command,
    environment,
    running,
    submit,
)

SEEN = """
import json, os, sys
names = sorted(set(os.listdir("/")) - {"gcs"})
print(json.dumps([dict(os.environ), sys.argv[1:], os.getuid(), sys.version, names]))
"""
OF_ONE_JOB = re.compile(r"\d{16,}|workerpool0-[0-9a-f]{10}|127\.\d+\.\d+\.\d+:\d+|/[^\"]*/files")


@dataclass
class SharedPaths:
    """A directory of a program, a data directory and a cache for its runs."""

    directory: Path
    data: Path
    cache: Path

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def start(self, *args: str, **env: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            command("local-run", *args),
            cwd=self.directory,
            env=environment(self.data) | {"TRAINSHED_CACHE": str(self.cache)} | env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str, **env: str) -> tuple[int, list[str], str]:
        """Exit status, lines, and what was said beside them."""
        surroundings = environment(self.data) | {"TRAINSHED_CACHE": str(self.cache)} | env
        words = ["-m", "trainshed", "local-run", *args]
        done = nursery.services().run(words, surroundings, seconds=300, cwd=self.directory)
        return done.returncode, done.stdout.decode().splitlines(), done.stderr.decode()

    @property
    def rooms(self) -> list[Path]:
        return list((self.data / "local-runs").iterdir())


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept = cache_of(os.geteuid())
    return (
        kept
        if os.access(kept.parent, os.W_OK) or kept.exists()
        else tmp_path_factory.mktemp("cache")
    )


@pytest.fixture
def ground(tmp_path: Path, cache: Path) -> SharedPaths:
    (tmp_path / "program").mkdir()
    return SharedPaths(tmp_path / "program", tmp_path / "data", cache)


def test_its_lines_and_its_exit_status_are_ours(ground: SharedPaths) -> None:
    """spec/program#arguments: output in its order and to its stream, arguments as given; nothing is left."""
    ground.write("task.sh", 'echo "out $1 $2"; echo wrong >&2; exit 3')
    ground.write("beside.txt", "")
    status, lines, errors = ground.run(
        "--executor-image-uri=scikit-learn=1.6+slim", "--script=task.sh", "--", "-a", "b c"
    )
    assert (status, lines) == (3, ["out -a b c"])
    assert errors.splitlines()[-1] == "wrong"
    assert ground.rooms == []


def test_it_finds_what_a_replica_finds(ground: SharedPaths, tmp_path: Path) -> None:
    """spec/program#local-runs: the same program as a job and as a local run sees the same variables, user,
    Python and machine."""
    ground.write("seen.py", SEEN)
    with running(tmp_path / "service") as service:
        program = {
            "imageUri": SKLEARN,
            "command": ["python3", "-c", SEEN],
            "args": ["--x", "1"],
            "env": [{"name": "OWN", "value": "<$(CLOUD_ML_REGION)>"}],
        }
        pool = {
            "machineSpec": {"machineType": "n1-standard-4"},
            "replicaCount": "1",
            "containerSpec": program,
        }
        uid = submit(service, {"displayName": "seen", "jobSpec": {"workerPoolSpecs": [pool]}})
        assert service.finish(uid, seconds=300)["state"] == "SUCCEEDED"
        as_job = json.loads(service.lines(uid, "workerpool0-0")[-1])
    status, lines, errors = ground.run(
        f"--executor-image-uri={SKLEARN}",
        "--script=seen.py",
        f"--project={PROJECT}",
        "--env=OWN=<$(CLOUD_ML_REGION)>",
        "--",
        "--x",
        "1",
    )
    assert status == 0, errors
    as_run = json.loads(lines[-1])
    environ, run_environ = as_job[0], as_run[0]
    # A local run has nobody to report its progress to.
    shared = {name for name in environ if not name.startswith("KUBEFLOW_TRAINER_")}
    assert run_environ.keys() == shared
    for name in shared - {"CLUSTER_SPEC", "TF_CONFIG", "MASTER_PORT"}:
        assert OF_ONE_JOB.sub("?", run_environ[name]) == OF_ONE_JOB.sub("?", environ[name]), name
    cluster = json.loads(run_environ["CLUSTER_SPEC"])
    assert cluster["task"] == json.loads(environ["CLUSTER_SPEC"])["task"]
    assert cluster.keys() == json.loads(environ["CLUSTER_SPEC"]).keys()
    assert as_run[1:] == as_job[1:]


def test_buckets_and_credentials_are_there_without_a_service(ground: SharedPaths) -> None:
    """spec/program#credentials: gs:// by the storage endpoint, /gcs where there are namespaces, default
    credentials."""
    ground.write(
        "task.py",
        "import os\nfrom google.cloud import storage\nimport google.auth\n"
        "blob = storage.Client().bucket('trainshed').blob('made.txt')\n"
        "blob.upload_from_string('by ' + google.auth.default()[1])\n"
        "print(blob.download_as_text(), os.environ['AIP_MODEL_DIR'])\n",
    )
    status, lines, errors = ground.run(
        "--executor-image-uri=scikit-learn=1.6+slim",
        "--script=task.py",
        "--project=mine",
        "--base-output-dir=gs://trainshed/out",
    )
    assert (status, lines) == (0, ["by mine gs://trainshed/out/model/"]), errors
    assert (ground.data / "buckets" / "trainshed" / "made.txt").read_text() == "by mine"


def test_a_running_services_buckets_are_used_and_outlive_it(ground: SharedPaths) -> None:
    """spec/program#storage: whoever serves the buckets, programs reach them; a service that starts and stops
    meanwhile is not held up."""
    ground.write(
        "task.py",
        "import os, sys, time, urllib.request\n"
        "url = os.environ['STORAGE_EMULATOR_HOST'] + '/storage/v1/b/trainshed'\n"
        "while not os.path.exists('/gcs/trainshed/stop'):\n"
        "    for wait in (1, 1, 1, 1, 0):\n"
        "        try:\n"
        "            urllib.request.urlopen(url).read(); break\n"
        "        except OSError:\n"
        "            if not wait: raise\n"
        "            time.sleep(wait)\n"
        "    print('read', flush=True)\n"
        "    time.sleep(0.05)\n",
    )
    process = ground.start("--executor-image-uri=scikit-learn=1.6+slim", "--script=task.py")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "read\n", process.stderr
        with running(ground.data) as service:
            service.put("trainshed", "by-service.txt", b"x")
            _read_some(process, 5)
        _read_some(process, 5)
        (ground.data / "buckets" / "trainshed" / "stop").touch()
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (0, "")
    finally:
        process.kill()
        process.wait()


def _read_some(process: "subprocess.Popen[str]", lines: int) -> None:
    assert process.stdout is not None
    for _ in range(lines):
        assert process.stdout.readline() == "read\n"


def test_a_package_with_requirements_is_installed_once(ground: SharedPaths) -> None:
    """spec/runtimes#packages: packages are a layer that is kept; a module runs as in a job with a Python
    package."""
    ground.write("trainer/__init__.py", "")
    ground.write(
        "trainer/task.py",
        "import os, six, sys\nprint(six.__version__, os.listdir('.'), sys.argv[1:])",
    )
    ground.write(
        "setup.py",
        "from setuptools import setup\n"
        "setup(name='own', version='1', packages=['trainer'], install_requires=['six==1.17.0'])\n",
    )
    wanted = (
        "--executor-image-uri=scikit-learn=1.6+slim",
        "--python-module=trainer.task",
        "--",
        "1",
    )
    status, lines, errors = ground.run(*wanted)
    assert (status, lines) == (0, ["1.17.0 [] ['1']"]), errors
    assert ground.run(*wanted) == (0, lines, "")


def test_a_requirement_that_nobody_has_is_told(ground: SharedPaths) -> None:
    """spec/operations#errors: the installer's words; our own exit status, since nothing ran."""
    ground.write("task.py", "print('never')")
    ground.write("requirements.txt", "no-such-package-of-trainshed==9")
    status, lines, errors = ground.run(
        "--executor-image-uri=scikit-learn=1.6+slim", "--script=task.py"
    )
    assert (status, lines) == (125, [])
    assert "no-such-package-of-trainshed" in errors
    assert ground.rooms == []


def test_all_that_is_wrong_is_told_by_option(ground: SharedPaths) -> None:
    """spec/submit#refusals: the rules of a job, in the words of the command line."""
    ground.write("task.py", "")
    status, _, errors = ground.run(
        "--executor-image-uri=scikit-learn=1.6+slim",
        "--script=task.py",
        "--machine-type=n1-large",
        "--base-output-dir=out",
    )
    assert status == 125
    assert "--machine-type: Machine type n1-large is not supported." in errors
    assert "--base-output-dir: 'out' is not a Cloud Storage path" in errors


def test_a_secret_reaches_the_program_and_not_the_output(ground: SharedPaths) -> None:
    """spec/program#local-runs: named in env as in a job, its value from a variable of the caller's."""
    ground.write("task.sh", 'echo "$PASSWORD"; test "$PASSWORD" = "a-value-of-mine" && echo same')
    secret = (
        "--executor-image-uri=scikit-learn=1.6+slim",
        "--script=task.sh",
        "--env=PASSWORD=$(secret:db)",
    )
    status, lines, errors = ground.run(*secret, "--secret=db=MY_VALUE", MY_VALUE="a-value-of-mine")
    assert (status, lines) == (0, ["***", "same"]), errors
    status, _, errors = ground.run(*secret)
    assert status == 125
    assert "the secret db is not given" in errors


def test_a_program_beyond_its_memory_is_killed_and_that_is_told(ground: SharedPaths) -> None:
    """spec/machines#memory: 137, and the limit."""
    ground.write("task.py", "held = []\nwhile True: held.append(bytearray(20 << 20))")
    config = ground.directory / "settings.toml"
    config.write_text("memory_per_replica = 200")
    status, _, errors = ground.run(
        "--executor-image-uri=scikit-learn=1.6+slim", "--script=task.py", f"--config={config}"
    )
    assert status == 137, errors
    assert "ran out of memory and was killed: its limit is 0.2 GiB" in errors


def test_the_first_interrupt_asks_and_the_second_kills(ground: SharedPaths) -> None:
    """spec/lifecycle#success: SIGTERM with a time of grace; the exit status is still the program's."""
    ground.write(
        "task.py",
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: (print('asked', flush=True), patient or sys.exit(7)))\n"
        "patient = len(sys.argv) > 1\n"
        "print('up', flush=True)\n"
        "while True: time.sleep(0.1)\n",
    )
    wanted = ("--executor-image-uri=scikit-learn=1.6+slim", "--script=task.py")
    for args, statuses in ((wanted, (7,)), ((*wanted, "--", "patient"), (137,))):
        process = ground.start(*args)
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "asked\n"
        if len(args) > 2:
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
        assert process.returncode in statuses
    assert ground.rooms == []


def test_whoever_reads_no_further_ends_the_program(ground: SharedPaths) -> None:
    """spec/program#local-runs: as with any command in a pipe; nothing runs on unseen."""
    mark = new_mark()
    ground.write("task.sh", "while :; do echo y; sleep 0.05; done")
    process = ground.start(
        "--executor-image-uri=scikit-learn=1.6+slim", "--script=task.sh", f"--env=MARK={mark}"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "y\n"
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert not [pid for pid in marked(mark) if _runs(pid, "task.sh")]
    assert process.stderr is not None
    assert process.stderr.read() == ""


@pytest.mark.soak  # Whose output nobody reads: above.
def test_the_program_is_run_also_if_nobody_reads_what_is_said_beside_it(
    ground: SharedPaths,
) -> None:
    """spec/program#local-runs: the exit status is the program's."""
    ground.write("task.sh", "echo y; kill -9 $$")
    process = ground.start("--executor-image-uri=scikit-learn=1.6+slim", "--script=task.sh")
    assert process.stderr is not None
    process.stderr.close()
    assert process.stdout is not None
    assert process.stdout.read() == "y\n"
    assert process.wait(timeout=30) == 137


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a kernel that tells of ends")
def test_a_run_that_is_killed_takes_its_program_along(ground: SharedPaths) -> None:
    """spec/program#local-runs: nothing of it is left, neither processes nor files."""
    process, programs = _killable(ground)
    caretakers = _caretakers(process.pid)
    process.kill()
    process.wait()
    wait_until_gone([*programs, *caretakers])
    assert ground.rooms == []
    assert leftovers(ground.data) == []


@pytest.mark.soak  # What its caretaker does: above.
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a kernel that tells of ends")
def test_what_even_its_caretaker_left_goes_with_the_next_run(ground: SharedPaths) -> None:
    """spec/program#local-runs: as after a loss of all processes of a run but its program's."""
    process, programs = _killable(ground)
    for pid in _caretakers(process.pid):
        os.kill(pid, signal.SIGKILL)
    process.kill()
    process.wait()
    assert len(ground.rooms) == 1
    ground.write("quick.sh", "echo next")
    assert ground.run("--executor-image-uri=scikit-learn=1.6+slim", "--script=quick.sh")[:2] == (
        0,
        ["next"],
    )
    wait_until_gone(programs)
    _until(lambda: ground.rooms == [])


def _killable(ground: SharedPaths) -> tuple["subprocess.Popen[str]", list[int]]:
    """A run whose program runs, and that program's processes."""
    mark = new_mark()
    ground.write("task.sh", "echo up; exec sleep 300")
    process = ground.start(
        "--executor-image-uri=scikit-learn=1.6+slim", "--script=task.sh", f"--env=MARK={mark}"
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    # It says so right before it becomes what it is found by.
    _until(lambda: any(_runs(pid, "sleep") for pid in marked(mark)))
    return process, [pid for pid in marked(mark) if _runs(pid, "sleep")]


def _runs(pid: int, word: str) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    except OSError:
        return False


def _caretakers(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    found = [
        int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text() == "ts-caretaker\n"
    ]
    assert found
    return found


def _until(holds: Callable[[], bool]) -> None:
    """Wait for what another process does on the disk, which nothing tells of."""
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        select.select([], [], [], 0.05)


def test_files_are_kept_if_that_is_wanted(ground: SharedPaths) -> None:
    """spec/program#local-runs: what a program has left in its working directory, until somebody deletes
    it."""
    ground.write("task.sh", "echo made > result.txt")
    wanted = ("--executor-image-uri=scikit-learn=1.6+slim", "--script=task.sh")
    _, _, errors = ground.run(*wanted, "--keep")
    place = Path(errors.strip().rpartition(" ")[2])
    assert (place / "result.txt").read_text() == "made\n"
    assert not (ground.directory / "result.txt").exists()
    ground.run(*wanted)
    assert place.is_dir()


@pytest.mark.soak  # As a job: test_containers.py.
def test_an_image_of_ones_own_runs_with_and_without_files(
    ground: SharedPaths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """spec/program#arguments; facts/packaging#autopackaging: its own entry point; or a script in /usr/app,
    which belongs to nobody else."""
    image = _image(monkeypatch, tmp_path)
    plain = ("--executor-image-uri", image)
    status, lines, errors = ground.run(*plain)
    if "namespaces" in errors:
        pytest.skip(f"container images cannot be run here: {errors}")
    assert (status, lines) == (4, ["from the image"]), errors
    assert ground.run(*plain, "--", "echo $0 instead")[1] == ["/bin/sh instead"]
    ground.write("deep/task.sh", "pwd; ls; touch new && echo written")
    status, lines, errors = ground.run(*plain, "--script=deep/task.sh")
    assert (status, lines) == (0, ["/usr/app", "deep", "written"]), errors
    assert ground.rooms == []


def _image(monkeypatch: pytest.MonkeyPatch, place: Path) -> str:
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(storage(place)))
    with_programs(place / "small.tar")
    reference = f"localhost/local-run-{os.getpid()}:1"
    says = (
        'ENTRYPOINT ["/bin/sh", "-c"]',
        'CMD ["echo from the image; exit 4"]',
        "USER ada",
    )
    changes = [f"--change={change}" for change in says]
    podman("import", *changes, str(place / "small.tar"), reference)
    return reference


@as_root_only
@pytest.mark.soak  # tests/engines runs the engine as such a user.
def test_the_same_as_an_ordinary_user() -> None:
    """spec/program#local-runs: isolation differs, what is seen and what is left do not."""
    cache_of(NOBODY)
    few = "lines_and_its_exit or takes_its_program or beyond_its_memory or image_of_ones_own"
    run_as_nobody("-m", "", "-k", few, str(Path(__file__)), timeout=300)
