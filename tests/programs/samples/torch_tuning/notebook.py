# %%
import os
import subprocess
import sys

from google.cloud import aiplatform, storage
from google.cloud.aiplatform import hyperparameter_tuning as hpt

BUCKET = os.environ["BUCKET_NAME"]
subprocess.run([sys.executable, "setup.py", "-q", "sdist"], check=True)
storage.Client(project=os.environ["PROJECT_ID"]).bucket(BUCKET).blob(
    "digits-0.1.tar.gz"
).upload_from_filename("dist/digits-0.1.tar.gz")
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=f"gs://{BUCKET}",
    api_endpoint=os.environ["TRAINSHED_GRPC_ENDPOINT"],
    api_transport="grpc",
)

# %%
worker_pool_specs = [
    {
        "machine_spec": {
            "machine_type": "n1-standard-4",
            "accelerator_type": "NVIDIA_TESLA_T4",
            "accelerator_count": 1,
        },
        "replica_count": 1,
        "python_package_spec": {
            "executor_image_uri": "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.1-12:latest",
            "package_uris": [f"gs://{BUCKET}/digits-0.1.tar.gz"],
            "python_module": "trainer.task",
            "args": ["--epochs", "2"],
        },
    }
]
my_custom_job = aiplatform.CustomJob(
    display_name="digits", worker_pool_specs=worker_pool_specs, base_output_dir=f"gs://{BUCKET}/digits"
)
hp_job = aiplatform.HyperparameterTuningJob(
    display_name="digits-tuning",
    custom_job=my_custom_job,
    metric_spec={"accuracy": "maximize"},
    parameter_spec={
        "lr": hpt.DoubleParameterSpec(min=0.0005, max=0.05, scale="log"),
        "hidden": hpt.IntegerParameterSpec(min=8, max=64, scale="linear"),
    },
    max_trial_count=3,
    parallel_trial_count=1,
    search_algorithm="random",
)
hp_job.run()
