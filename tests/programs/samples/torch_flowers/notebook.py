# %%
import glob
import os
import subprocess
import sys

from google.cloud import aiplatform, storage

BUCKET = os.environ["BUCKET_NAME"]
bucket = storage.Client(project=os.environ["PROJECT_ID"]).bucket(BUCKET)
for path in glob.glob("data/flowers/**/*.png", recursive=True):
    bucket.blob(path[len("data/") :]).upload_from_filename(path)
subprocess.run([sys.executable, "setup.py", "-q", "sdist", "--formats=gztar"], check=True)
bucket.blob("flowers-0.1.tar.gz").upload_from_filename("dist/flowers-0.1.tar.gz")

# %%
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=f"gs://{BUCKET}",
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)
job = aiplatform.CustomPythonPackageTrainingJob(
    display_name="flowers",
    python_package_gcs_uri=f"gs://{BUCKET}/flowers-0.1.tar.gz",
    python_module_name="trainer.task",
    container_uri="us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.1-13.py310:latest",
)
job.run(
    args=["--data-dir", f"/gcs/{BUCKET}/flowers"],
    base_output_dir=f"gs://{BUCKET}/out",
    replica_count=1,
    machine_type="n1-standard-8",
)
