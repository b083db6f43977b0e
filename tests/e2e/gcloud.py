"""The real gcloud with a test's service: no account, no shared configuration, only loopback."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import NamedTuple, TextIO

import pytest

from tests.e2e.fork_server import ForkServer
from tests.e2e.running import PROJECT, REGION, Service

BINARY = shutil.which("gcloud")

needs_gcloud = pytest.mark.skipif(
    BINARY is None, reason="gcloud is NOT INSTALLED: nothing here was tried with the real command"
)
"""Used with `@pytest.mark.gcloud`: skips with a message."""


ALONE = {
    "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
    "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
    "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
    "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
}
"""Variables that prevent network access and prompts."""
_APIS = "AIPLATFORM ML LOGGING CLOUDRESOURCEMANAGER IAM IAMCREDENTIALS SERVICEUSAGE"
_COMMANDS = (
    "crash_handling logs.stream ai.custom_jobs.custom_jobs_util ai.custom_jobs.flags ai.log_util "
    "ml_engine.jobs_util ml_engine.flags util.apis.yaml_command_translator"
)
_MESSAGES = "aiplatform.v1.aiplatform_v1 aiplatform.v1beta1.aiplatform_v1beta1 ml.v1.ml_v1"
_LOADED = (
    "googlecloudsdk.gcloud_main",
    *(f"googlecloudsdk.command_lib.{name}" for name in _COMMANDS.split()),
    *(f"googlecloudsdk.generated_clients.apis.{name}_messages" for name in _MESSAGES.split()),
)


@functools.cache
def _load_fork_server() -> ForkServer | None:
    """Forks commands from a process that has loaded the modules of both services' commands, which are most of
    a command's CPU time. None if this gcloud does not bundle a Python.
    """
    assert BINARY is not None
    root = Path(BINARY).resolve().parents[1]
    python = root / "platform/bundledpythonunix/bin/python3"
    if not python.exists() or not (root / "lib/gcloud.py").exists() or "CLOUDSDK_PYTHON" in os.environ:
        return None
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{root}/lib/third_party:{root}/lib",
        "PYTHONUNBUFFERED": "1",
    }
    return ForkServer(_LOADED, python, environ)


class _Loaded(NamedTuple):
    """Return the process that runs a command."""

    fork_server: ForkServer
    program: list[str]
    environ: dict[str, str]


def _loaded_for(arguments: Sequence[str], environ: Mapping[str, str]) -> _Loaded | None:
    assert BINARY is not None
    # Storage commands start processes from the state of their parent. A process that has loaded gcloud has no
    # accounts.
    is_apart = arguments[0] == "storage" or "CLOUDSDK_AUTH_ACCESS_TOKEN" not in environ
    if is_apart or not (fork_server := _load_fork_server()):
        return None
    root = Path(BINARY).resolve().parents[1]
    # As in the command's own script.
    surroundings = {
        **environ,
        "CLOUDSDK_ROOT_DIR": str(root),
        "CLOUDSDK_PYTHON_SITEPACKAGES": "1",
        "CLOUDSDK_ENCODING": "UTF-8",
        "PYTHONIOENCODING": "UTF-8",
    }
    return _Loaded(fork_server, [str(root / "lib/gcloud.py"), *arguments], surroundings)


def _run(
    arguments: Sequence[str], environ: Mapping[str, str], timeout: float, cwd: Path | None
) -> subprocess.CompletedProcess[bytes]:
    if loaded := _loaded_for(arguments, environ):
        return loaded.fork_server.run(loaded.program, loaded.environ, seconds=timeout, cwd=cwd)
    assert BINARY is not None
    return subprocess.run(
        [BINARY, *arguments], env=environ, capture_output=True, timeout=timeout, cwd=cwd, check=False
    )


@dataclass(frozen=True)
class Gcloud:
    """Runs gcloud with the environment of `trainshed env` (spec/clients#recipes). Without a service token it
    uses the signed-in gcloud user.
    """

    service: Service
    configuration: Path

    def environment(self) -> dict[str, str]:
        rest = self.service.rest
        buckets = self.service.extra.get("storage", rest)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CLOUDSDK_", "GOOGLE_", "BOTO_"))
        }
        return {
            **kept,
            "CLOUDSDK_CONFIG": str(self.configuration),
            **({"CLOUDSDK_AUTH_ACCESS_TOKEN": self.service.token} if self.service.token else {}),
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_AI_REGION": REGION,
            "CLOUDSDK_COMPUTE_REGION": REGION,
            **{f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{rest}/" for api in _APIS.split()},
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{buckets}/storage/v1/",
            "CLOUDSDK_ML_ENGINE_POLLING_INTERVAL": "1",
            **ALONE,
            # Flush each line, also into a pipe.
            "PYTHONUNBUFFERED": "1",
        }

    def run(
        self, *arguments: str, fails: bool = False, timeout: float = 60, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end and assert success, or failure with `fails`."""
        ended = _run(arguments, self.environment(), timeout, cwd)
        done = subprocess.CompletedProcess(
            ended.args, ended.returncode, ended.stdout.decode(), ended.stderr.decode()
        )
        report = f"gcloud {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert (done.returncode != 0) is fails, report
        return done

    @contextlib.contextmanager
    def start(self, *arguments: str) -> "Generator[Output]":
        """Run gcloud in parallel with the test, for commands that may never exit. It is killed at the end of
        the block."""
        assert BINARY is not None
        environ = self.environment()
        reader, writer = os.pipe()
        if loaded := _loaded_for(arguments, environ):
            process = loaded.fork_server.fork(loaded.program, loaded.environ, stdout=writer, stderr=writer)
            kill = process.kill
        else:
            process = subprocess.Popen(
                [BINARY, *arguments], env=environ, stdout=writer, stderr=writer, start_new_session=True
            )
            kill = functools.partial(os.killpg, process.pid, signal.SIGKILL)
        os.close(writer)
        with os.fdopen(reader) as lines:
            try:
                yield Output(lines, kill)
            finally:
                kill()
                process.wait()


@dataclass
class Output:
    """The output of a running gcloud, line by line, without waiting for its exit."""

    stream: TextIO
    kill: Callable[[], object]
    lines: list[str] = field(default_factory=list[str])

    def until(self, wanted: str, *, timeout: float = 60) -> str:
        """Read up to a line that contains `wanted` and return it. Without such a line, kill the process."""
        too_late = Timer(timeout, self.kill)
        too_late.start()
        try:
            for line in self.stream:
                self.lines.append(line.rstrip("\n"))
                if wanted in line:
                    return self.lines[-1]
        finally:
            too_late.cancel()
        output = "\n".join(self.lines)
        raise AssertionError(f"no line with {wanted!r} came; what came is:\n{output}")
