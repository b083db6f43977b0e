"""Runs a program by its instructions, waits for its jobs, and loads its models in its own runtime from its
bucket.
"""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.e2e.gcloud import ALONE
from tests.e2e.packages import wheel
from tests.e2e.running import REGION, Service, env_variables
from tests.programs import data
from tests.programs.table import Program

HERE = Path(__file__).parent
SHELL = "/bin/bash"
PROGRAM_TIMEOUT = 1500.0
"""Seconds for a program, including the build of its environment."""
_LOADER = "load_model"


class ProgramFailed(Exception):
    """The program, its jobs, or the loading of their models failed."""


@dataclass(frozen=True)
class Runner:
    """Runs programs on a service. `place`: directory for copies of their folders."""

    service: Service
    place: Path
    image: str = ""

    def run(self, program: Program) -> None:
        """Run a program, and load its models. Raises ProgramFailed."""
        self._make_bucket(program)
        self._start(program)
        jobs = self._finish_jobs(program)
        models = self._model_uris(program)
        if program.metric:
            self._check_trials(jobs, len(models))
        self._load(program, jobs[0], models)

    def _make_bucket(self, program: Program) -> None:
        self.service.call("POST", f"/storage/v1/b?project={program.project}", {"name": program.project})

    def _start(self, program: Program) -> None:
        folder = self.place / program.name
        shutil.copytree(HERE / "samples" / program.folder, folder)
        for name in program.data:
            data.write(name, folder / "data")
        command = SHELL if program.script.endswith(".sh") else sys.executable
        try:
            done = subprocess.run(
                [command, program.script],
                cwd=folder,
                env=self._environment(program),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=PROGRAM_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise ProgramFailed(f"{program.script} took too long: {late.output}") from None
        if done.returncode:
            raise ProgramFailed(f"{program.script}: {done.returncode}\n{done.stdout}{self._story(program)}")

    def _environment(self, program: Program) -> dict[str, str]:
        """Return the environment after `eval "$(trainshed env)"`, with the variables that such programs
        expect.
        """
        return env_variables(self.service) | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "CLOUDSDK_CONFIG": str(self.place / "gcloud"),
            **ALONE,
            "CLOUDSDK_CORE_PROJECT": program.project,
            "GOOGLE_CLOUD_PROJECT": program.project,
            "GCLOUD_PROJECT": program.project,
            "PROJECT_ID": program.project,
            "BUCKET_NAME": program.project,
            "REGION": REGION,
            "IMAGE_URI": self.image,
        }

    def _finish_jobs(self, program: Program) -> list[dict[str, Any]]:
        """Return the program's jobs, which have all succeeded."""
        jobs = self._jobs(program)
        if not jobs:
            raise ProgramFailed(f"{program.script} has submitted no job")
        ended = [self.service.finish(quote(job["name"], safe=""), PROGRAM_TIMEOUT) for job in jobs]
        if any(job["state"] != "SUCCEEDED" for job in ended):
            raise ProgramFailed(self._story(program))
        return jobs

    def _jobs(self, program: Program) -> list[dict[str, Any]]:
        return self._list(f"project={program.project}")

    def _list(self, question: str) -> list[dict[str, Any]]:
        return self.service.call("GET", f"/trainshed/v1/jobs?{question}")["jobs"]

    def _below(self, name: str) -> list[dict[str, Any]]:
        """Return the child jobs of a job, such as a trial's, the newest first."""
        return self._list(f"parent={quote(name, safe='')}")

    def _story(self, program: Program) -> str:
        """Return errors and last lines of the program's jobs."""
        lines: list[str] = []
        for job in self._jobs(program):
            for resource in (job, *self._below(job["name"])):
                lines.append(f"{resource['name']}: {resource['state']}")
                if resource["state"] == "FAILED":
                    lines += self.service.lines(quote(resource["name"], safe=""))[-40:]
        return "\n".join(lines)

    def _model_uris(self, program: Program) -> list[str]:
        """Return URIs of the models in the bucket, and check that all other expected objects exist."""
        root = Path(self.service.extra["buckets"]) / program.project
        for pattern in (program.model, *program.also):
            if not any(root.glob(pattern)):
                there = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
                raise ProgramFailed(f"nothing is at {pattern}; there are {there[:60]}")
        return [f"gs://{program.project}/{path.relative_to(root)}" for path in root.glob(program.model)]

    def _check_trials(self, jobs: list[dict[str, Any]], models: int) -> None:
        resource = self.service.call("GET", f"/v1/{jobs[0]['name']}")
        vertex, ml = resource.get("trials"), resource.get("trainingOutput", {}).get("trials")
        trials: list[dict[str, Any]] = vertex or ml or []
        measured = [trial for trial in trials if trial.get("finalMeasurement") or trial.get("finalMetric")]
        if not trials or len(measured) != len(trials) or models != len(trials):
            raise ProgramFailed(
                f"{len(measured)} of {len(trials)} trials have a measurement, {models} a model: {trials}"
            )

    def _load(self, program: Program, job: dict[str, Any], models: list[str]) -> None:
        """Run the loader as a job with the image or runtime version and the packages of the program's job."""
        loading = self._load_by_ml if job["api"] == "ml" else self._load_by_vertex
        ref = quote(loading(program, job, models), safe="")
        state = self.service.finish(ref, PROGRAM_TIMEOUT)["state"]
        lines = self.service.lines(ref)
        loaded = len(lines) if program.own_image else sum("LOADED" in line for line in lines)
        if state != "SUCCEEDED" or loaded != len(models):
            raise ProgramFailed(f"{models} could not be loaded: {state}\n" + "\n".join(lines[-40:]))

    def _load_by_ml(self, program: Program, job: dict[str, Any], models: list[str]) -> str:
        inputs = self.service.call("GET", f"/v1/{job['name']}")["trainingInput"]
        kept = {key: inputs[key] for key in ("runtimeVersion", "pythonVersion", "region") if key in inputs}
        if "masterConfig" in inputs:
            kept["masterConfig"] = {"imageUri": inputs["masterConfig"]["imageUri"]}
        body = {
            "jobId": f"load_{time.time_ns()}",
            "trainingInput": kept
            | {
                "packageUris": [*inputs.get("packageUris", []), self._packed_loader(program)],
                "pythonModule": _LOADER,
                "args": models,
            },
        }
        self.service.call("POST", f"/v1/projects/{program.project}/jobs", body)
        return f"projects/{program.project}/jobs/{body['jobId']}"

    def _load_by_vertex(self, program: Program, job: dict[str, Any], models: list[str]) -> str:
        name = job["name"]
        while below := self._below(name):
            name = below[0]["name"]
        (pool, *_) = self.service.call("GET", f"/v1/{name}")["jobSpec"]["workerPoolSpecs"]
        spec: dict[str, Any] = {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": 1}
        if program.own_image:
            paths = [uri.replace("gs://", "/gcs/") for uri in models]
            image = pool["containerSpec"]["imageUri"]
            spec["containerSpec"] = {"imageUri": image, "command": ["cat", *paths]}
        else:
            python: dict[str, Any] = pool.get("pythonPackageSpec", {})
            image = python.get("executorImageUri") or pool["containerSpec"]["imageUri"]
            spec["pythonPackageSpec"] = {
                "executorImageUri": image,
                "packageUris": [*python.get("packageUris", []), self._packed_loader(program)],
                "pythonModule": _LOADER,
                "args": models,
            }
        body = {"displayName": "load", "jobSpec": {"workerPoolSpecs": [spec]}}
        parent = f"/v1/projects/{program.project}/locations/{REGION}/customJobs"
        return self.service.call("POST", parent, body)["name"]

    def _packed_loader(self, program: Program) -> str:
        """Upload the loader as a package to the program's bucket; return its URI."""
        source = (HERE / "loaders" / f"{program.loader}.py").read_text()
        name = f"loader/{_LOADER}-0.1-py3-none-any.whl"
        self.service.put(program.project, name, wheel(_LOADER, source))
        return f"gs://{program.project}/{name}"
