"""Programs that use a framework in ways that a fork could break. They train on all CPUs, start threads and
processes, draw random numbers, show their environment, and finally fail inside the framework."""

_PRINTS_SURROUNDINGS = """
import json, os, signal, sys

def look(**more):
    status = open("/proc/self/status").read().splitlines()
    shown = {
        "blocked": [line for line in status if line.startswith("SigBlk")],
        "handlers": {int(n): repr(signal.getsignal(n)) for n in signal.valid_signals()
                     if not callable(signal.getsignal(n))},
        "prefix": sys.prefix,
        "hooks": [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__],
    }
    print(json.dumps({**shown, **more}, default=str, sort_keys=True))
"""

PYTORCH_TRAINS = """
import json, os, sys
import numpy, torch

def worker(number):
    return int(torch.initial_seed() % 2**31)

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, at):
        return at * at

torch.manual_seed(7)
numpy.random.seed(7)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(512, 64)
for _ in range(10):
    optimizer.zero_grad()
    loss = (model(inputs) ** 2).mean()
    loss.backward()
    optimizer.step()
large = torch.ones(700, 700)
loader = torch.utils.data.DataLoader(Squares(), batch_size=4, num_workers=2)
print(json.dumps({
    "loss": loss.item(),
    "numpy": numpy.random.rand(3).tolist(),
    "product": [(large @ large).sum().item(), float((numpy.ones((700, 700)) @ numpy.ones((700, 700))).sum())],
    "batches": [batch.tolist() for batch in loader],
    "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "cuda": [torch.cuda.is_available(), torch.cuda.is_initialized(), torch.cuda._is_in_bad_fork()],
    "backends": [torch.backends.mkldnn.is_available(), torch.backends.openmp.is_available()],
    "devices": [str(torch.get_default_device()), str(torch.get_default_dtype())],
    "compiled": torch.jit.script(torch.nn.ReLU())(torch.tensor([-1.0, 2.0])).tolist(),
    "tasks": len(os.listdir("/proc/self/task")) > 1,
    "prefix": sys.prefix,
}))
torch.tensor([1, 2]) @ torch.tensor([1, 2, 3])
"""
"""Trains on all CPUs, uses data loader workers, starts processes, and finally fails inside PyTorch."""

PYTORCH_DRAWN = """
import json, numpy, random, torch
print(json.dumps([torch.initial_seed(), torch.rand(1).item(), numpy.random.rand(), random.random()]))
"""

SCIKIT_LEARN_TRAINS = f"""{_PRINTS_SURROUNDINGS}
import warnings
import joblib, numpy, sklearn, threadpoolctl
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.neural_network import MLPClassifier

def double(x):
    return 2 * x

inputs, labels = make_classification(400, 12, random_state=1)
kinds = [
    HistGradientBoostingClassifier(max_iter=10, random_state=1),
    RandomForestClassifier(20, n_jobs=2, random_state=1),
    LogisticRegression(),
    MLPClassifier((8,), max_iter=300, random_state=1),
]
pools = sorted((p["user_api"], p["internal_api"], p["num_threads"]) for p in threadpoolctl.threadpool_info())
look(
    scores=[each.fit(inputs, labels).predict_proba(inputs).sum(0).tolist() for each in kinds],
    processes=cross_val_score(kinds[1], inputs, labels, cv=3, n_jobs=2).tolist(),
    joblib=[joblib.Parallel(2, prefer=how)(joblib.delayed(double)(x) for x in range(5))
            for how in ("threads", "processes")],
    pools=pools,
    processors=joblib.cpu_count(),
    product=float((numpy.ones((500, 500)) @ numpy.ones((500, 500))).sum()),
    configuration=sklearn.get_config(),
    filters=len(warnings.filters),
)
LogisticRegression().predict(inputs)
"""

SCIKIT_LEARN_DRAWN = """
import json, numpy, random
from sklearn.utils import shuffle
print(json.dumps([shuffle(range(10**4))[:3], numpy.random.rand(), random.random()]))
"""

XGBOOST_TRAINS = f"""{_PRINTS_SURROUNDINGS}
import numpy, xgboost
draw = numpy.random.default_rng(1)
inputs = draw.random((2000, 10))
labels = inputs.sum(1) > 5
data = xgboost.DMatrix(inputs, labels)
settings = dict(objective="binary:logistic", tree_method="hist", nthread=2, seed=1, subsample=0.5)
booster = xgboost.train(settings, data, 10, [(data, "train")])
model = xgboost.XGBClassifier(n_estimators=5, random_state=1).fit(inputs, labels)
look(
    predicted=[float(booster.predict(data).sum()), float(model.predict_proba(inputs).sum())],
    configuration=xgboost.get_config(),
    threads=len(os.listdir("/proc/self/task")) > 1,
)
xgboost.train({{"objective": "nothing"}}, data, 1)
"""

XGBOOST_DRAWN = """
import json, numpy, random
print(json.dumps([numpy.random.rand(), random.random()]))
"""

TENSORFLOW_TRAINS = f"""{_PRINTS_SURROUNDINGS}
import multiprocessing
import numpy
import tensorflow as tf

tf.keras.utils.set_random_seed(7)
inputs = numpy.random.rand(256, 8).astype("float32")
data = tf.data.Dataset.from_tensor_slices((inputs, inputs.sum(1)))
data = data.map(lambda x, y: (x * 2, y), num_parallel_calls=2).batch(32).prefetch(2)
model = tf.keras.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(1)])
model.compile("adam", "mse")
history = model.fit(data, epochs=2, verbose=0)

@tf.function
def traced(x):
    return tf.reduce_sum(tf.linalg.matmul(x, x))

multiplied = tf.py_function(lambda x: x * 3, [tf.constant(2.0)], tf.float32)
look(
    losses=history.history["loss"],
    traced=float(traced(tf.ones((400, 400)))),
    called=float(multiplied),
    devices=[device.name for device in tf.config.list_logical_devices()],
    pools=[tf.config.threading.get_inter_op_parallelism_threads(),
           tf.config.threading.get_intra_op_parallelism_threads()],
    eager=tf.executing_eagerly(),
    strategy=type(tf.distribute.get_strategy()).__name__,
    mirrored=tf.distribute.MirroredStrategy(["/cpu:0"]).num_replicas_in_sync,
    level=tf.get_logger().level,
    threads=len(os.listdir("/proc/self/task")) > 2,
)
tf.linalg.matmul(tf.ones((2, 3)), tf.ones((2, 3)))
"""

TENSORFLOW_DRAWN = """
import json, numpy, random
import tensorflow as tf
drawn = [
    tf.random.uniform([]),
    tf.keras.initializers.RandomNormal()([1])[0],
    tf.random.Generator.from_non_deterministic_state().uniform([]),
]
print(json.dumps([*map(float, drawn), numpy.random.rand(), random.random()]))
"""
