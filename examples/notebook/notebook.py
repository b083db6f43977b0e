"""From a table to the best model with the Vertex SDK, like in a notebook.

    trainshed up &                      # or ./dev up
    eval "$(trainshed env)"
    pip install 'google-cloud-aiplatform[metadata]' google-cloud-storage
    python examples/notebook/notebook.py

Editors with cell support show each part below as a cell (`# %%`).
"""

# %% Connect to the service, and select the experiment
import os
import pathlib
import random
import sys

from google.cloud import aiplatform, storage

BUCKET = "trainshed"
EXPERIMENT = sys.argv[1] if len(sys.argv) > 1 else "churn"
IMAGE = "us-docker.pkg.dev/vertex-ai/training/pytorch-cpu.2-4:latest"
SERVING = "us-docker.pkg.dev/vertex-ai/prediction/pytorch-cpu.2-4:latest"

aiplatform.init(
    api_endpoint=os.environ["TRAINSHED_ENDPOINT"],
    api_transport="rest",
    staging_bucket=f"gs://{BUCKET}",
    experiment=EXPERIMENT,
)

# %% Create a table of customers: new customers who call often leave
chance = random.Random(7)
rows = ["months,calls,left"]
for _ in range(1000):
    months, calls = chance.randrange(48), chance.randrange(12)
    rows.append(f"{months},{calls},{int(calls * 4 - months + chance.gauss(0, 6) > 0)}")
storage.Client().bucket(BUCKET).blob(f"{EXPERIMENT}/customers.csv").upload_from_string("\n".join(rows) + "\n")
dataset = aiplatform.TabularDataset.create(
    display_name="customers", gcs_source=f"gs://{BUCKET}/{EXPERIMENT}/customers.csv"
)

# %% Run three trainings in parallel on the same split of the table
tensorboard = aiplatform.Tensorboard.create(display_name=EXPERIMENT)
trained = {}
for rate in (0.01, 0.1, 1.0):
    run = f"rate-{str(rate).replace('.', '-')}"
    with aiplatform.start_run(run):
        aiplatform.log_params({"learning_rate": rate, "epochs": 30})
    job = aiplatform.CustomTrainingJob(
        display_name=run,
        script_path=str(pathlib.Path(__file__).with_name("task.py")),
        container_uri=IMAGE,
        model_serving_container_image_uri=SERVING,
    )
    trained[run] = job.run(
        dataset=dataset,
        model_display_name=f"{EXPERIMENT}-{run}",
        base_output_dir=f"gs://{BUCKET}/{EXPERIMENT}/{run}",
        args=["--experiment", EXPERIMENT, "--run", run, "--learning-rate", rate],
        machine_type="n1-standard-4",
        training_fraction_split=0.8,
        validation_fraction_split=0.1,
        test_fraction_split=0.1,
        tensorboard=tensorboard.resource_name,
        sync=False,
    )
for model in trained.values():
    model.wait()

# %% Compare them, and select the best
table = aiplatform.get_experiment_df(EXPERIMENT).sort_values("metric.accuracy", ascending=False)
print(table[["run_name", "state", "param.learning_rate", "metric.accuracy", "metric.rows"]])
best = table.iloc[0]["run_name"]

# %% Print the location of its model
print(f"{best} is the best; its model is stored in {trained[best].uri}")
