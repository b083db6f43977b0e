"""The real gcloud against a test's service: no account, no shared configuration, nothing but loopback."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pytest

from tests.e2e.running import PROJECT, REGION, Service

BINARY = shutil.which("gcloud")

needs_gcloud = pytest.mark.skipif(
    BINARY is None,
    reason="gcloud is NOT INSTALLED: nothing here was tried with the real command",
)
"""Beside `@pytest.mark.gcloud`: skips, and says so."""


@dataclass(frozen=True)
class Gcloud:
    """Runs gcloud with an environment as `trainshed env` prints it (spec/clients#recipes)."""

    service: Service
    configuration: Path

    @property
    def storage(self) -> str:
        """The URL of the bucket process."""
        return str(self.service.extra.get("storage", self.service.rest))

    def environment(self) -> dict[str, str]:
        rest = self.service.rest
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("CLOUDSDK_", "GOOGLE_", "BOTO_"))
        }
        return {
            **kept,
            "CLOUDSDK_CONFIG": str(self.configuration),
            "CLOUDSDK_AUTH_ACCESS_TOKEN": self.service.token,
            "CLOUDSDK_CORE_PROJECT": PROJECT,
            "CLOUDSDK_AI_REGION": REGION,
            "CLOUDSDK_COMPUTE_REGION": REGION,
            **{
                f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{api}": f"{rest}/"
                for api in ("AIPLATFORM", "ML", "LOGGING", "CLOUDRESOURCEMANAGER")
            },
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{self.storage}/storage/v1/",
            "CLOUDSDK_ML_ENGINE_POLLING_INTERVAL": "1",
            # Nothing that would leave the machine or wait for a person.
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "0",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "CLOUDSDK_SURVEY_DISABLE_PROMPTS": "1",
            # Lines come when they are printed, also into a pipe.
            "PYTHONUNBUFFERED": "1",
        }

    def run(
        self, *arguments: str, fails: bool = False, timeout: float = 60, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end; asserts that it succeeds, or with `fails` that it does not."""
        assert BINARY is not None
        done = subprocess.run(
            [BINARY, *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            check=False,
        )
        said = f"gcloud {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert (done.returncode != 0) is fails, said
        return done

    @contextlib.contextmanager
    def started(self, *arguments: str) -> "Generator[Output]":
        """A gcloud that goes on beside the test, for commands that may never end; killed at the end."""
        assert BINARY is not None
        process = subprocess.Popen(
            [BINARY, *arguments],
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        output = Output(process)
        try:
            yield output
        finally:
            output.end()


@dataclass
class Output:
    """What a running gcloud prints, line by line, without the test ever waiting for its end."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list[str])
    _queue: "Queue[str | None]" = field(default_factory=Queue[str | None])

    def __post_init__(self) -> None:
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, wanted: str, *, timeout: float = 60) -> str:
        """Read on to a line that contains `wanted`; returns it."""
        while True:
            try:
                line = self._queue.get(timeout=timeout)
            except Empty:
                line = None
            if line is None:
                said = "\n".join(self.lines)
                raise AssertionError(f"no line with {wanted!r} came; what came is:\n{said}")
            self.lines.append(line)
            if wanted in line:
                return line

    def end(self) -> None:
        """Kill it, if it has not ended, and read what is left."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, 9)
        self.process.wait()
        self._reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self._queue.put(line.rstrip("\n"))
        self._queue.put(None)
