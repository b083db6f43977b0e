# %%
import os

from google.cloud import aiplatform
from google.cloud.aiplatform import hyperparameter_tuning as hpt

BUCKET_URI = f"gs://{os.environ['BUCKET_NAME']}"
aiplatform.init(
    project=os.environ["PROJECT_ID"],
    location=os.environ["REGION"],
    staging_bucket=BUCKET_URI,
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
)

# %%
custom_job = aiplatform.CustomJob.from_local_script(
    display_name="digits",
    script_path="trainer.py",
    container_uri="us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest",
    requirements=["cloudml-hypertune"],
    base_output_dir=BUCKET_URI + "/digits",
)

# %%
hpt_job = aiplatform.HyperparameterTuningJob(
    display_name="digits-tuning",
    custom_job=custom_job,
    metric_spec={"val_loss": "minimize"},
    parameter_spec={
        "eta0": hpt.DoubleParameterSpec(min=1e-3, max=1.0, scale="log"),
        "penalty": hpt.CategoricalParameterSpec(values=["l2", "l1", "elasticnet"]),
        "batch_size": hpt.DiscreteParameterSpec(values=[32, 64], scale="linear"),
    },
    max_trial_count=4,
    parallel_trial_count=2,
    search_algorithm=None,
)
hpt_job.run()

# %%
best = min(hpt_job.trials, key=lambda trial: trial.final_measurement.metrics[0].value)
print(best)
