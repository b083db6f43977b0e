"""The programs: framework, submitting client, outputs, and loader of each."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """A training program, submitted by one client."""

    #: Name of the folder below `samples/`, with a suffix if there are several ways to submit it.
    name: str
    #: The submitting client.
    client: str
    #: The requested image (without its tag) or runtime version.
    runtime: str
    #: Pattern of the model objects in the bucket. At least one must exist; for a tuning job one per trial.
    model: str
    #: The program of `loaders/` that loads them, in the same runtime.
    loader: str
    #: The command to start, in its folder: a shell script, a notebook's cells or a program.
    script: str = "submit.sh"
    #: Data sets next to it, below `data/`.
    data: tuple[str, ...] = ()
    #: Patterns of its other objects in the bucket.
    also: tuple[str, ...] = ()
    #: It is a tuning job: each of its trials must have a final measurement.
    metric: bool = False
    #: Part of `./dev test-all`: needs only the small runtimes.
    small: bool = False
    #: Runs in its own image, which the runner builds from its Dockerfile's files.
    own_image: bool = False
    #: The reason if it does not pass.
    fails: str = ""

    @property
    def folder(self) -> str:
        return self.name.partition("-")[0]

    @property
    def project(self) -> str:
        """The program's own project, which identifies its jobs. The bucket has a similar name."""
        return "p-" + self.name.replace("_", "-")


_SCIKIT_LEARN = "sklearn-cpu.1-6"
_NOTEBOOK = "notebook.py"
_SDK, _SDK_GRPC = "SDK", "SDK, gRPC"
_ML, _AI = "gcloud ai-platform", "gcloud ai"

PROGRAMS = (
    Program(
        "census_pipeline", _ML, "none", "census/model/*/model.joblib", "joblib_model",
        data=("census.csv",), small=True,
    ),
    Program(
        "penguins_gcsfs", _AI, _SCIKIT_LEARN, "penguins/output/model/model.pkl", "pickled_model",
        data=("penguins.csv",), also=("penguins/output/model/confusion.csv",), small=True,
    ),
    Program(
        "wine_tuning", _AI, _SCIKIT_LEARN, "wine/output/*/model/model.joblib", "joblib_model",
        metric=True, small=True,
    ),
    Program(
        "pyproject_package", "gapic, REST", _SCIKIT_LEARN, "concrete/model/model.joblib",
        "joblib_model", script="submit.py", data=("housing.csv",), small=True,
    ),
    Program(
        "lightgbm_script", _SDK, _SCIKIT_LEARN, "lightgbm/model/model.txt", "lightgbm_model",
        script=_NOTEBOOK, data=("housing.csv",), small=True,
    ),
    Program(
        "shell_in_job", _AI, _SCIKIT_LEARN, "output/model/model.joblib", "joblib_model",
        data=("housing.csv",), also=("backup/fit.py",), small=True,
    ),
    Program(
        "cloud_imports", _AI, _SCIKIT_LEARN, "cloud/model/model.pkl", "pickled_model",
        data=("iris.csv",), small=True,
    ),
    Program(
        "shell_container", _SDK, "an image of its own", "mean/model/model.json", "cat",
        script=_NOTEBOOK, own_image=True,
    ),
    Program(
        "old_python", _AI, "scikit-learn-cpu.0-23", "taxi/out/model/model.joblib", "joblib_model",
        data=("housing.csv",),
    ),
    Program(
        "xgb_classifier", _AI, "xgboost-cpu.1-6", "out/model/model.bst", "xgboost_model",
        data=("census.csv",),
    ),
    Program(
        "xgb_dask", _SDK, "xgboost-cpu.2-1", "boston/model/model.json", "xgboost_model",
        script=_NOTEBOOK, data=("housing.csv",),
    ),
    Program(
        "xgb_gsutil", _ML, "2.11", "iris_*/model.bst", "xgboost_model",
        data=("iris.csv", "housing.csv"),
    ),
    Program(
        "tf115_canned", _ML, "1.15", "census_estimator_*/export/census/*/saved_model.pb",
        "saved_model", data=("census.csv", "census_test.csv"),
    ),
    Program(
        "tf115_distributed", _ML, "1.15", "digits/out/export/exporter/*/saved_model.pb",
        "saved_model", data=("digits",),
    ),
    Program(
        "tf115_hptuning", _ML, "1.15", "iris/*/export/*/saved_model.pb", "saved_model",
        data=("iris.csv",), metric=True,
    ),
    Program(
        "tf21_sequential", _ML, "2.1", "keras-job-dir/keras_export/saved_model.pb", "saved_model",
        data=("housing.csv",), also=("keras-job-dir/checkpoints/cp-004.ckpt.index",),
    ),
    Program(
        "tf26_tfrecords", _ML, "2.6", "functional/model/saved_model.pb", "saved_model",
        data=("digits",), also=("functional/checkpoints/best/saved_model.pb",),
    ),
    Program(
        "tf26_multiworker", "API client", "2.6", "mwms/out/keras-model/saved_model.pb",
        "saved_model", script="submit.py",
    ),
    Program(
        "tf26_summary_tuning", _ML, "2.6", "summaries/*/model/saved_model.pb", "saved_model",
        metric=True,
    ),
    Program(
        "tf211_datasets_hub", _SDK, "tf-cpu.2-11", "reviews/model/saved_model.pb", "saved_model",
        script=_NOTEBOOK, data=("reviews.csv",),
    ),
    Program(
        "tf211_parameter_server", _AI, "tf-cpu.2-11", "ps/out/model/saved_model.pb", "saved_model"
    ),
    Program(
        "tf212_transform", _SDK, "tf-cpu.2-12", "tft/model/saved_model.pb", "saved_model",
        script=_NOTEBOOK, data=("reviews.csv",),
    ),
    Program(
        "tf217_keras3", _SDK, "tf-cpu.2-17", "keras3/model/export/saved_model.pb", "saved_model",
        script=_NOTEBOOK, also=("keras3/model/model.keras", "keras3/logs/train/events.*"),
    ),
    Program(
        "torch1_structured", _ML, "pytorch-xla.1-7", "sonar/models/*_model.pt", "torch_state",
        data=("housing.csv",),
    ),
    Program(
        "torch1_structured-tuning", _ML, "pytorch-gpu.1-7", "sonar/models/*/*_model.pt",
        "torch_state", script="submit_tuning.sh", data=("housing.csv",), metric=True,
    ),
    Program(
        "torch_flowers", _SDK, "pytorch-cpu.1-13", "out/model/model.pt", "torch_script",
        script=_NOTEBOOK, data=("flowers",),
    ),
    Program(
        "torch_ddp_env", _SDK, "pytorch-cpu.2-1", "ddp/model/model.pt", "torch_state",
        script=_NOTEBOOK,
    ),
    Program(
        "torch_torchrun", _AI, "pytorch-gpu.2-3", "torchrun/model/model.pt", "torch_script"
    ),
    Program(
        "torch_lightning", _SDK, "pytorch-gpu.2-2", "lightning/model/model.pt", "torch_script",
        script=_NOTEBOOK,
    ),
    Program(
        "torch_tuning", _SDK_GRPC, "pytorch-gpu.1-12", "digits/*/model/model.pt", "torch_state",
        script=_NOTEBOOK, metric=True,
    ),
    Program(
        "transformers_tiny", _SDK, "pytorch-gpu.1-13", "bert/model/config.json",
        "transformers_model", script=_NOTEBOOK, data=("reviews.csv",),
    ),
)  # fmt: skip
