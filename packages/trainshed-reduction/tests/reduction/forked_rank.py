"""Runs the program of a rank that a fork server with PyTorch has forked (ADR 54).

The rank's variables and packages are known only now. So PyTorch searches for plug-ins now, as `import torch`
does at its end.
"""

import importlib
import os
import runpy
import sys
from typing import Any

sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)
torch: Any = importlib.import_module("torch")
rank = os.environ.get("RANK", "0")
if rank in os.environ.get("TEST_AUTOLOAD", rank):
    torch._import_device_backends()
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])  # noqa: PTH120 - as Python writes it
runpy.run_path(sys.argv[0], run_name="__main__")
