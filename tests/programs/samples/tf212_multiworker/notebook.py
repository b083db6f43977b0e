# %%
import glob
import os

from google.cloud import aiplatform, storage

BUCKET = os.environ["BUCKET_NAME"]
bucket = storage.Client(project=os.environ["PROJECT_ID"]).bucket(BUCKET)
for path in glob.glob("data/digits/*.tfrecord"):
    bucket.blob("digits/" + os.path.basename(path)).upload_from_filename(path)

# %%
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=f"gs://{BUCKET}",
    api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
    api_transport="grpc",
)
job = aiplatform.CustomTrainingJob(
    display_name="digits-multi",
    script_path="task.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-12.py310:latest",
    requirements=["tensorflow-datasets==4.9.2"],
)

# %%
job.run(
    args=["--epochs=2", "--distribute=multi", f"--pattern=gs://{BUCKET}/digits/*.tfrecord"],
    replica_count=2,
    machine_type="n1-standard-4",
    base_output_dir=f"gs://{BUCKET}/multi",
)
