"""Builds the C library for tests: once for all tests of the checkout, or with special flags for one test.

To use sanitizers:

    TRAINSHED_TEST_NATIVE_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover"
    ASAN_OPTIONS=detect_leaks=0 \\
        LD_PRELOAD=$(cc -print-file-name=libasan.so) \\
        pytest packages/trainshed-reduction/tests/reduction/test_{transfer,native}.py
"""

import os
from pathlib import Path

import pytest

from tests.e2e.running import CACHE
from trainshed_reduction.native import __main__, library
from trainshed_reduction.native.library import Library

PORTABLE = ("-DTRAINSHED_PORTABLE",)
"""Flags for a library without code for special processors."""


def shared_library(*flags: str) -> Library:
    """Return the library for all tests, or a library with these flags. It is built once for the checkout and
    its sources."""
    directory = CACHE.joinpath("reduction-native", *flags, *_more_flags())
    path = directory / library.name()
    return Library(path) if path.exists() else build(directory, *flags)


def build(directory: Path, *flags: str) -> Library:
    """Build the library. Skips the test without a C compiler."""
    path, why = __main__.build(directory, ("-Werror", *flags, *_more_flags()))
    if path is None and "no C compiler" in why:
        pytest.skip("the C library is not tested: " + why)
    assert path is not None, why
    return Library(path)


def _more_flags() -> list[str]:
    return os.environ.get("TRAINSHED_TEST_NATIVE_FLAGS", "").split()
