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
job = aiplatform.CustomTrainingJob(
    display_name="lightning",
    script_path="task.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-2.py310:latest",
    requirements=["lightning", "tensorboard"],
)
job.run(base_output_dir=BUCKET_URI + "/lightning", machine_type="n1-standard-4")
