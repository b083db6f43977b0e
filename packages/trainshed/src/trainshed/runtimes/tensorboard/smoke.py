"""Sets TensorBoard up for an empty directory, as it is before it serves."""

import importlib
import tempfile

default = importlib.import_module("tensorboard.default")
program = importlib.import_module("tensorboard.program")
importlib.import_module("werkzeug.serving")

with tempfile.TemporaryDirectory() as place:
    board = program.TensorBoard(plugins=default.get_static_plugins())
    board.configure(logdir=place, load_fast="false")
    assert board.flags.logdir == place
