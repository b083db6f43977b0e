"""Builds the C part for tests, once for each of them that asks.

With sanitizers, by hand:

    TRAINSHED_TEST_NATIVE_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover"
    ASAN_OPTIONS=detect_leaks=0 \\
        LD_PRELOAD=$(cc -print-file-name=libasan.so) pytest tests/reduction/test_transfer.py
        tests/reduction/test_native.py
"""

import os
from pathlib import Path

import pytest

from trainshed_reduction.native import compilation
from trainshed_reduction.native.library import Library

PORTABLE = ("-DTRAINSHED_PORTABLE",)
"""Without what only some systems and processors have."""


def build(directory: Path, *flags: str) -> Library:
    """Skips the test where there is no compiler."""
    more = os.environ.get("TRAINSHED_TEST_NATIVE_FLAGS", "").split()
    path, why = compilation.build(directory, ("-Werror", *flags, *more))
    if path is None and "no C compiler" in why:
        pytest.skip("the C part is not tested: " + why)
    assert path is not None, why
    return Library(path)
