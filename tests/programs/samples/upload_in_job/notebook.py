# %%
import os

from google.cloud import aiplatform

PROJECT_ID, REGION = os.environ["PROJECT_ID"], os.environ["REGION"]
BUCKET_URI = f"gs://{os.environ['BUCKET_NAME']}"
aiplatform.init(
    project=PROJECT_ID,
    location=REGION,
    staging_bucket=BUCKET_URI,
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)

# %%
job = aiplatform.CustomTrainingJob(
    display_name="breast-cancer",
    script_path="task.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
    requirements=["google-cloud-aiplatform"],
)
job.run(
    args=[f"--project={PROJECT_ID}", f"--location={REGION}"],
    base_output_dir=f"{BUCKET_URI}/cancer",
    machine_type="n1-standard-4",
)

# %%
print([model.display_name for model in aiplatform.Model.list()])
