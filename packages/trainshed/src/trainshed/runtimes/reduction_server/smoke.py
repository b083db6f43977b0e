"""Adds two arrays in place, which is what reducers do."""

import importlib

np = importlib.import_module("numpy")

total = np.arange(4, dtype=np.float32)
np.add(total, np.frombuffer(bytes(16), np.float32), out=total)
assert total.tolist() == [0, 1, 2, 3]
