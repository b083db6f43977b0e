"""Names in the metadata store, directories in the bucket, and placeholders that belong to a pipeline job.
Pure."""

import hashlib
import re
from datetime import UTC, datetime
from typing import Final

from trainshed.core.environment import service_agent
from trainshed.core.names import JobName, project_number
from trainshed.core.pipeline_jobs import PipelineJob
from trainshed.core.units import Nanos
from trainshed_pipelines.template.placeholders import Context

_NOT_IN_AN_ID: Final = re.compile(r"[^a-z0-9-]+")


def metadata_store(run: JobName) -> str:
    """Return the name of the metadata store of a pipeline job's location."""
    return f"projects/{run.project_id}/locations/{run.location}/metadataStores/default"


def context_name(run: JobName, context: str) -> str:
    """Return the name of the context of a pipeline (its name in the template) or of a run (its ID)."""
    return f"{metadata_store(run)}/contexts/{_NOT_IN_AN_ID.sub('-', context.lower())}"


def artifact_parent(run: JobName) -> str:
    return f"{metadata_store(run)}/artifacts"


def artifact_name(run: JobName, number: int, key: str, index: int = 0) -> str:
    """Return the name of an output artifact of the task with this number."""
    key = _NOT_IN_AN_ID.sub("-", key.lower())[:50]
    suffix = f"-{index}" if index else ""
    return f"{artifact_parent(run)}/{_unique(run.job_id, 60)}-{number}-{key}{suffix}"


def execution_name(run: JobName, number: int) -> str:
    """Return the name of the execution of the task with this number."""
    return f"{metadata_store(run)}/executions/{_unique(run.job_id, 100)}-{number}"


def _unique(text: str, most: int) -> str:
    """Return a text, or its beginning with a digest if it is longer than `most`."""
    if len(text) <= most:
        return text
    return f"{text[: most - 13]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def task_directory(root: str, run: JobName, name: str, number: int) -> str:
    """Return the `gs://` directory of a task below the pipeline root (facts/pipelines#directories)."""
    job = f"{root.rstrip('/')}/{project_number(run.project_id)}/{run.job_id}"
    return f"{job}/{name}_{number + 1}"


def facts_of(run: PipelineJob) -> Context:
    """Return the placeholders of a pipeline job."""
    created = _utc(run.created)
    return Context(
        pipeline_job_name=run.name.job_id,
        pipeline_job_resource_name=str(run.name),
        pipeline_job_uuid=str(run.uid),
        pipeline_task_name="",
        pipeline_task_uuid="",
        pipeline_root=run.root,
        pipeline_job_create_time_utc=created,
        pipeline_job_schedule_time_utc=created,
        pipeline_google_cloud_location=run.name.location,
        pipeline_google_cloud_project_id=run.name.project_id,
        pipeline_service_account=run.service_account or service_agent(run.name.project_id),
    )


def _utc(time: Nanos) -> str:
    return datetime.fromtimestamp(time // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
