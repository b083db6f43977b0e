"""Imports what every runtime holds."""

import importlib

for name in ("pip", "setuptools", "google.cloud.storage", "hypertune"):
    importlib.import_module(name)
