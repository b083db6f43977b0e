# %%
import os

from google.cloud import aiplatform

BUCKET_URI = "gs://" + os.environ["BUCKET_NAME"]

# %%
# gRPC, as the library does without being told
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=BUCKET_URI,
    api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
    api_transport="grpc",
)

# %%
custom_job = aiplatform.CustomJob.from_local_script(
    display_name="clusters",
    script_path="main.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
    requirements=["absl-py"],
    args=["--clusters=3", "--tag=a", "--tag=b"],
    environment_variables={"MY_SETTING": "1"},
    base_output_dir=BUCKET_URI + "/clusters",
    labels={"stage": "test"},
)
custom_job.run(timeout=1800, restart_job_on_worker_restart=False)
