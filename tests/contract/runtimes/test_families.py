"""Families that are really built and used (spec/runtimes): a small one always, large ones with
`./dev test-runtimes`."""

import asyncio
import os
import re
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.commands import needs_compiler, running
from tests.contract.runtimes.conftest import content, copy_template
from tests.e2e.packages import Objects
from trainshed.core.environment import REDUCER_PROGRAM
from trainshed.core.runtime import RuntimeChoice
from trainshed.runtimes.families import FAMILIES, format_minor, parse_minor, sheet_of
from trainshed.runtimes.interpreters import Interpreters
from trainshed.runtimes.port import PreparedRuntime
from trainshed.runtimes.service import LocalRuntimes
from trainshed_reduction import variables as reduction

CACHE = Path(os.environ.get("TRAINSHED_CACHE") or Path(__file__).resolve().parents[3] / "build/test-cache")
_LARGE = [
    ("xgboost", "3.2", ""),
    ("xgboost", "1.1", "3.7"),
    ("pytorch", "2.13", ""),
    ("tensorflow", "2.21", ""),
    ("tensorflow", "2.11", "3.10"),
    ("tensorflow", "2.6", "3.7"),
    ("tensorflow", "1.15", "3.7"),
    ("scikit-learn", "0.23", "3.7"),
]
"""Family, version, Python version ("" = the default one of the release)."""
_TRAINING = {
    "tensorflow": """
import tensorflow as tf
weights = tf.Variable([0.0])
for _ in range(200):
    with tf.GradientTape() as tape:
        loss = (weights * 2.0 - 6.0) ** 2
    weights.assign_sub(0.05 * tape.gradient(loss, weights))
print(round(float(weights.numpy()[0]), 3), tf.__version__)
""",
    "tensorflow 1.15": """
import tensorflow as tf
weights = tf.Variable([0.0])
train = tf.train.GradientDescentOptimizer(0.05).minimize((weights * 2.0 - 6.0) ** 2)
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for _ in range(200):
        session.run(train)
    print(round(float(session.run(weights)[0]), 3), tf.__version__)
""",
    "pytorch": """
import torch
weights = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.05)
for _ in range(200):
    optimizer.zero_grad()
    ((weights * 2 - 6) ** 2).sum().backward()
    optimizer.step()
print(round(weights.item(), 3), torch.__version__)
""",
    "xgboost": """
import numpy, xgboost
points = numpy.arange(20.0).reshape(20, 1)
model = xgboost.XGBRegressor(n_estimators=50, max_depth=2).fit(points, points[:, 0])
print(float(model.predict(points[3:4])[0]), xgboost.__version__)
""",
    "scikit-learn": """
import numpy, sklearn
from sklearn.linear_model import LinearRegression
points = numpy.arange(4.0).reshape(4, 1)
print(round(float(LinearRegression().fit(points, points[:, 0] * 3).coef_[0]), 3), sklearn.__version__)
""",
}
"""A typical training loop for each family, which ends near a loss of 3.0."""


def prepare(cache: Path, choice: RuntimeChoice, messages: list[str]) -> PreparedRuntime:
    with closing(LocalRuntimes(cache, Objects(), now=time.monotonic_ns)) as runtimes:
        return asyncio.run(runtimes.prepare(choice, (), messages.append))


@needs_compiler
def test_reducers_run_on_the_oldest_installed_interpreter() -> None:
    """spec/reduction#exactness: Python 3.8 or newer with its NumPy. The package is read-only on the
    path of every Python."""
    (sheet,) = (entry for entry in FAMILIES if entry.family == "reduction-server")
    interpreters = Interpreters().found()
    oldest = format_minor(min(entry for entry in interpreters if sheet.releases[0].runs_on(entry)))
    with closing(LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)) as runtimes:
        prepared = asyncio.run(runtimes.prepare(RuntimeChoice("reduction-server", "", oldest), ()))
        packages = asyncio.run(runtimes.prepare_reduction())
        assert runtimes.reduction() == packages
    environ = {"PYTHONPATH": packages, reduction.LISTEN: "127.0.0.1:0", reduction.TOKEN: "secret"}
    with running(
        *(f"{prepared.template}/bin/python3", *REDUCER_PROGRAM[1:]),
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    ) as reducer:
        assert reducer.stdout is not None
        assert reducer.stdout.readline().startswith("listening on 127.0.0.1:")
        reducer.terminate()
        assert reducer.wait(30) == 0


@pytest.mark.runtimes
@pytest.mark.parametrize(("family", "version", "python"), _LARGE)
def test_each_framework_family_trains_a_model(family: str, version: str, python: str, tmp_path: Path) -> None:
    """spec/runtimes#environments: environments of every framework, with current and old versions,
    run unmodified programs."""
    runtimes = LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)
    choice = runtimes.catalog.for_family(family, version, python)
    runtimes.close()
    if not isinstance(choice, RuntimeChoice):
        pytest.skip(f"{family} {version} is NOT tested: {choice.reason}")
    if python and choice.python_version != python:
        pytest.skip(f"{family} {version} is NOT tested: there is no Python {python} on this machine")
    lines: list[str] = []
    prepared = prepare(CACHE, choice, lines)
    replica = copy_template(prepared, tmp_path)
    # A second preparation must be a lookup without any work.
    started = time.thread_time()
    again = LocalRuntimes(CACHE, Objects(), now=time.monotonic_ns)
    assert again.ready(choice, ()) == prepared
    assert time.thread_time() - started < 1
    again.close()
    program = _TRAINING.get(f"{family} {version}") or _TRAINING[family]
    number, framework = replica.python(program).splitlines()[-1].split()
    assert float(number) == pytest.approx(3.0, abs=0.3)
    assert parse_minor(framework) == parse_minor(version)
    sheet = sheet_of(family)
    assert sheet is not None
    release = sheet.release(version)
    assert release is not None
    recorded = content(prepared)
    assert all(re.sub(r"[._]", "-", name) in recorded for name in sheet.provides(release))
