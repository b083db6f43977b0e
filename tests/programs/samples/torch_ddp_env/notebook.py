# %%
import os

from google.cloud import aiplatform

BUCKET_URI = "gs://" + os.environ["BUCKET_NAME"]
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=BUCKET_URI,
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)

# %%
job = aiplatform.CustomTrainingJob(
    display_name="ddp",
    script_path="task.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-1.py310:latest",
)
job.run(
    replica_count=2,
    machine_type="n1-standard-4",
    base_output_dir=BUCKET_URI + "/ddp",
    args=["--backend", "gloo"],
)
