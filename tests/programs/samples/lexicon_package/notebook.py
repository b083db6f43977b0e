# %%
# Package the trainer
import os
import subprocess
import sys

from google.cloud import aiplatform, storage

BUCKET_NAME = os.environ["BUCKET_NAME"]
BUCKET_URI = f"gs://{BUCKET_NAME}"

subprocess.run([sys.executable, "setup.py", "-q", "sdist", "--formats=gztar"], check=True)

# %%
# ! gsutil cp dist/sentiment-trainer-0.3.1.tar.gz $BUCKET_URI/
bucket = storage.Client(project=os.environ["PROJECT_ID"]).bucket(BUCKET_NAME)
(archive,) = os.listdir("dist")
bucket.blob(f"packages/{archive}").upload_from_filename(f"dist/{archive}")
bucket.blob("data/reviews.csv").upload_from_filename("data/reviews.csv")

# %%
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=BUCKET_URI,
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)
job = aiplatform.CustomPythonPackageTrainingJob(
    display_name="sentiment",
    python_package_gcs_uri=f"{BUCKET_URI}/packages/{archive}",
    python_module_name="sentiment.task",
    container_uri="europe-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
)

# %%
job.run(
    replica_count=1,
    machine_type="e2-standard-4",
    base_output_dir=f"{BUCKET_URI}/sentiment",
    args=["--bucket", BUCKET_NAME, "--alpha", 0.001],
)
