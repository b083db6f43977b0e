"""Builds the wheel and submits a custom job with the client of the API, as the reference shows it."""

import os
import subprocess
import sys
import time

from google.api_core.client_options import ClientOptions
from google.cloud import aiplatform_v1, storage

project, region = os.environ["PROJECT_ID"], os.environ["REGION"]
bucket_name = os.environ["BUCKET_NAME"]

subprocess.run(
    [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."],
    check=True,
)
(wheel,) = os.listdir("dist")
bucket = storage.Client(project=project).bucket(bucket_name)
bucket.blob(f"wheels/{wheel}").upload_from_filename(f"dist/{wheel}")
bucket.blob("data/housing.csv").upload_from_filename("data/housing.csv")

client = aiplatform_v1.JobServiceClient(
    client_options=ClientOptions(api_endpoint=os.environ["TRAINSHED_ENDPOINT"]), transport="rest"
)
custom_job = {
    "display_name": "concrete",
    "job_spec": {
        "worker_pool_specs": [
            {
                "machine_spec": {"machine_type": "n1-standard-4"},
                "replica_count": 1,
                "python_package_spec": {
                    "executor_image_uri": "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
                    "package_uris": [f"gs://{bucket_name}/wheels/{wheel}"],
                    "python_module": "concrete",
                    "args": [f"--data=/gcs/{bucket_name}/data/housing.csv", "--alpha=0.01"],
                },
            }
        ],
        "base_output_directory": {"output_uri_prefix": f"gs://{bucket_name}/concrete"},
        "scheduling": {"timeout": {"seconds": 3600}},
    },
}
job = client.create_custom_job(parent=f"projects/{project}/locations/{region}", custom_job=custom_job)
print(job.name, job.state)
done = {
    aiplatform_v1.JobState.JOB_STATE_SUCCEEDED,
    aiplatform_v1.JobState.JOB_STATE_FAILED,
    aiplatform_v1.JobState.JOB_STATE_CANCELLED,
}
while job.state not in done:
    time.sleep(1)
    job = client.get_custom_job(name=job.name)
print(job.state, job.error)
