"""A trial's custom job as its clients see it: the trial job's spec as given, with the trial's arguments and directories."""

import json
from typing import Any

from trainshed.core.job.spec import JobSpec
from trainshed.core.names import Api


def public_json(spec: JobSpec, *, display_name: str, job_id: str) -> str:
    """The input fields of the resource, in public JSON, from the trial's own `spec` (`trial_jobs.trial_spec`)."""
    given: dict[str, Any] = json.loads(spec.job_json)
    if spec.api is Api.ML:
        given.pop("hyperparameters", None)
        given["args"] = list(spec.pool(0).program.args)
        if spec.job_dir:
            given["jobDir"] = spec.job_dir
        resource: dict[str, Any] = {"jobId": job_id, "trainingInput": given}
    else:
        for pool in spec.pools:
            program = given["workerPoolSpecs"][pool.position]
            part = program.get("containerSpec") or program.get("pythonPackageSpec")
            if part is not None and pool.program.args:
                part["args"] = list(pool.program.args)
        if spec.base_output_directory:
            given["baseOutputDirectory"] = {"outputUriPrefix": spec.base_output_directory}
        resource = {"displayName": display_name, "jobSpec": given}
    return json.dumps(resource, ensure_ascii=False, separators=(",", ":"))
