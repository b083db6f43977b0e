# %% [markdown]
# Distributed XGBoost with Dask: one scheduler, two workers

# %%
import os

from google.cloud import aiplatform, storage

bucket_name = os.environ["BUCKET_NAME"]
bucket = storage.Client(project=os.environ["PROJECT_ID"]).bucket(bucket_name)
bucket.blob("data/housing-000.csv").upload_from_filename("data/housing.csv")
bucket.blob("data/housing-001.csv").upload_from_filename("data/housing.csv")

# %%
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket="gs://" + bucket_name,
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)

# %%
job = aiplatform.CustomJob.from_local_script(
    display_name="xgboost-dask",
    script_path="task.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/xgboost-cpu.2-1:latest",
    requirements=["dask[dataframe,distributed]", "gcsfs"],
    args=[f"--data=gs://{bucket_name}/data/housing-*.csv"],
    replica_count=3,
    machine_type="n1-standard-4",
    base_output_dir=f"gs://{bucket_name}/boston",
)
job.run()
print(job.state)
