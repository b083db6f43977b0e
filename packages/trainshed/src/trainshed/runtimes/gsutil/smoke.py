"""Loads what gsutil is made of, and has it name its commands."""

import contextlib
import importlib
import io
import os
import sys
import tempfile

with tempfile.TemporaryDirectory() as home:
    os.environ.update(HOME=home, BOTO_CONFIG=os.devnull)
    sys.argv = ["gsutil", "version"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        importlib.import_module("gslib.__main__").main()
assert output.getvalue().startswith("gsutil version: "), output.getvalue()
