"""Fits a classifier to eight points."""

import importlib
import importlib.util

np = importlib.import_module("numpy")
linear_model = importlib.import_module("sklearn.linear_model")
for name in ("scipy", "setuptools.build_meta", "google.cloud.storage", "hypertune"):
    importlib.import_module(name)
# The slim release is for programs that need neither.
if importlib.util.find_spec("pandas"):
    for name in ("pandas", "xgboost", "requests"):
        importlib.import_module(name)

points, classes = np.arange(8.0).reshape(8, 1), np.array([0, 0, 0, 0, 1, 1, 1, 1])
model = linear_model.LogisticRegression().fit(points, classes)
assert list(model.predict([[0.0], [7.0]])) == [0, 1]
