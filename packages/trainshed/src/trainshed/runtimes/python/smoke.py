"""Imports what every runtime holds."""

import importlib

for name in (
    "pip",
    "setuptools.build_meta",
    "google.cloud.storage",
    "hypertune",
    "requests",
    "pandas",
):
    importlib.import_module(name)
