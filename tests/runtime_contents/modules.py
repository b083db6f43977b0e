"""The most imported modules of public training programs, with their distributions.

Counted over 300 programs of public sample collections, with the requirements of those programs and of the
documented images. Indirect imports (yarl, multidict) are included, because a broken installation shows there
first.
"""

from dataclasses import dataclass

_EVERY = ("python", "scikit-learn", "xgboost", "pytorch", "tensorflow")
_LEARNING = ("scikit-learn", "xgboost")


@dataclass(frozen=True, slots=True)
class Module:
    """`families`: those whose runtimes contain it."""

    name: str
    distribution: str
    families: tuple[str, ...]


def _of(families: tuple[str, ...], *names: str, **others: str) -> tuple[Module, ...]:
    """`names`: modules with the name of their distribution. `others`: module to distribution, with "__" for
    dots and hyphens.
    """
    same = [Module(name.replace("-", "_"), name, families) for name in names]
    modules = [
        Module(module.replace("__", "."), distribution, families) for module, distribution in others.items()
    ]
    return (*same, *modules)


MODULES = (
    *_of(
        _EVERY,
        *("aiohttp", "certifi", "click", "cloudpickle", "cycler"),
        *("db-dtypes", "decorator", "dill", "docopt", "flask", "fsspec", "future", "gcsfs"),
        *("google-auth-httplib2", "google-auth-oauthlib", "h5py", "httplib2", "idna"),
        *("itsdangerous", "jinja2", "joblib", "kiwisolver", "markupsafe", "matplotlib", "mock"),
        *("multidict", "numpy", "oauth2client", "oauthlib", "packaging", "pandas", "pandas-gbq"),
        *("pip", "psutil", "pyarrow", "pyasn1", "pyparsing", "pytz", "requests"),
        *("requests-oauthlib", "seaborn", "setuptools", "six", "tabulate", "tqdm", "uritemplate"),
        *("urllib3", "werkzeug", "wget", "wheel", "wrapt", "yarl"),
        absl="absl-py",
        attr="attrs",
        dateutil="python-dateutil",
        gin="gin-config",
        google__api_core="google-api-core",
        google__auth="google-auth",
        google__cloud__aiplatform="google-cloud-aiplatform",
        google__cloud__bigquery="google-cloud-bigquery",
        google__cloud__logging="google-cloud-logging",
        google__cloud__storage="google-cloud-storage",
        google__protobuf="protobuf",
        google__resumable_media="google-resumable-media",
        googleapiclient="google-api-python-client",
        grpc="grpcio",
        hypertune="cloudml-hypertune",
        PIL="pillow",
        pkg_resources="setuptools",
        proto="proto-plus",
        pythonjsonlogger="python-json-logger",
        yaml="pyyaml",
    ),
    *_of((*_LEARNING, "pytorch", "tensorflow"), "scipy", "threadpoolctl", sklearn="scikit-learn"),
    *_of((*_LEARNING, "pytorch", "tensorflow"), "sympy", "mpmath"),
    *_of((*_LEARNING, "tensorflow"), "statsmodels", "xgboost", "patsy"),
    *_of(
        _LEARNING,
        *("dask", "distributed", "lightgbm", "msgpack", "paste", "tblib", "toolz", "tornado"),
        *("webapp2", "webob", "zict"),
        google__cloud__datastore="google-cloud-datastore",
    ),
    *_of(
        ("pytorch",),
        *("torch", "torchaudio", "torchmetrics", "torchvision", "networkx", "filelock"),
        torch__utils__tensorboard="tensorboard",
        torchvision__transforms="torchvision",
        torchaudio__transforms="torchaudio",
    ),
    *_of(("pytorch", "tensorflow"), "tensorboard"),
    *_of(
        ("tensorflow",),
        *("tensorflow", "keras", "tensorflow-datasets", "tensorflow-hub", "tensorflow-transform"),
        *("tensorflow-io", "tensorflow-text", "explainable-ai-sdk", "gym", "moviepy", "keras-nlp"),
        *("tf-agents",),
        apache_beam="apache-beam",
        cv2="opencv-python-headless",
        official="tf-models-official",
    ),
)
