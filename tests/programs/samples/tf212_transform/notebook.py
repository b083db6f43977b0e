# %%
import os
import subprocess
import sys

from google.cloud import aiplatform, storage

BUCKET = os.environ["BUCKET_NAME"]
subprocess.run([sys.executable, "setup.py", "-q", "sdist"], check=True)
bucket = storage.Client(project=os.environ["PROJECT_ID"]).bucket(BUCKET)
bucket.blob("reviews-0.1.tar.gz").upload_from_filename("dist/reviews-0.1.tar.gz")
bucket.blob("reviews.csv").upload_from_filename("data/reviews.csv")

# %%
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=f"gs://{BUCKET}",
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)
job = aiplatform.CustomPythonPackageTrainingJob(
    display_name="reviews-transform",
    python_package_gcs_uri=f"gs://{BUCKET}/reviews-0.1.tar.gz",
    python_module_name="trainer.task",
    container_uri="us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-12.py310:latest",
)
job.run(args=[f"--reviews=gs://{BUCKET}/reviews.csv"], base_output_dir=f"gs://{BUCKET}/tft")
