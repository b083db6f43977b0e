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
    display_name="keras-3",
    script_path="task.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest",
)
job.run(
    base_output_dir=BUCKET_URI + "/keras3",
    environment_variables={"EPOCHS": "2"},
    machine_type="e2-standard-4",
)
