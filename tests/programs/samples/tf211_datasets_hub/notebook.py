# %%
import os

from google.cloud import aiplatform, storage

BUCKET = os.environ["BUCKET_NAME"]
storage.Client(project=os.environ["PROJECT_ID"]).bucket(BUCKET).blob("reviews.csv").upload_from_filename(
    "data/reviews.csv"
)
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=f"gs://{BUCKET}",
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)

# %%
job = aiplatform.CustomTrainingJob(
    display_name="reviews",
    script_path="task.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11:latest",
    requirements=["tensorflow-datasets", "tensorflow-hub"],
)
job.run(
    args=["--epochs=2", f"--reviews=gs://{BUCKET}/reviews.csv"],
    base_output_dir=f"gs://{BUCKET}/reviews",
    replica_count=1,
)
