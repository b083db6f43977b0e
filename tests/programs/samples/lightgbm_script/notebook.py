# %%
import os

from google.cloud import aiplatform, storage

BUCKET = os.environ["BUCKET_NAME"]
DATA_URI = f"/gcs/{BUCKET}/lightgbm/housing.csv"
storage.Client(project=os.environ["PROJECT_ID"]).bucket(BUCKET).blob(
    "lightgbm/housing.csv"
).upload_from_filename("data/housing.csv")

# %%
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=f"gs://{BUCKET}",
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)

# %%
job = aiplatform.CustomJob.from_local_script(
    display_name="lightgbm-housing",
    script_path="train.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest",
    requirements=["lightgbm>=4,<5", "pandas", "gcsfs"],
    args=["--training_data_uri", DATA_URI, "--num_leaves", "7"],
    base_output_dir=f"gs://{BUCKET}/lightgbm",
)
job.submit()
job.wait_for_resource_creation()
print(job.resource_name)
