# %%
import os

from google.cloud import aiplatform, storage

BUCKET = os.environ["BUCKET_NAME"]
storage.Client(project=os.environ["PROJECT_ID"]).bucket(BUCKET).blob("numbers.txt").upload_from_string(
    "1\n2\n3\n6\n"
)

# %%
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=f"gs://{BUCKET}",
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)
job = aiplatform.CustomContainerTrainingJob(display_name="mean", container_uri=os.environ["IMAGE_URI"])

# %%
job.run(
    base_output_dir=f"gs://{BUCKET}/mean",
    args=[f"--data=/gcs/{BUCKET}/numbers.txt"],
    replica_count=1,
    machine_type="n1-standard-4",
)
