# %% [markdown]
# Train a model on iris with a script of one file

# %%
import os
from datetime import datetime

from google.cloud import aiplatform

PROJECT_ID = os.environ["PROJECT_ID"]
REGION = os.environ["REGION"]
BUCKET_URI = f"gs://{os.environ['BUCKET_NAME']}"
TIMESTAMP = datetime.now().strftime("%Y%m%d%H%M%S")

# %%
aiplatform.init(
    project=PROJECT_ID,
    location=REGION,
    staging_bucket=BUCKET_URI,
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)

# %%
TRAIN_IMAGE = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"

job = aiplatform.CustomTrainingJob(
    display_name="iris-" + TIMESTAMP,
    script_path="task.py",
    container_uri=TRAIN_IMAGE,
    requirements=["tabulate"],
)

# %%
job.run(
    base_output_dir=f"{BUCKET_URI}/iris",
    replica_count=1,
    machine_type="n1-standard-4",
    sync=True,
)
print(job.state)
