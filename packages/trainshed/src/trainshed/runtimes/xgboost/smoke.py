"""Trains two trees through XGBoost's own interface and through the one of scikit-learn."""

import importlib

np = importlib.import_module("numpy")
xgboost = importlib.import_module("xgboost")
for name in ("sklearn", "pandas", "setuptools.build_meta", "google.cloud.storage", "hypertune"):
    importlib.import_module(name)

points, classes = np.arange(8.0).reshape(8, 1), np.array([0, 0, 0, 0, 1, 1, 1, 1])
model = xgboost.XGBClassifier(n_estimators=2, max_depth=1).fit(points, classes)
assert model.predict(points).shape == (8,)
booster = xgboost.train({"max_depth": 1}, xgboost.DMatrix(points, label=classes), 2)
assert len(booster.get_dump()) == 2
