"""Tests that the sums of the C library equal NumPy's, bit by bit (spec/reduction#exactness), and of errors
without the library."""

import ctypes
import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import execute
from tests.reduction.native_library import PORTABLE, shared_library
from tests.reduction.ranks import NUMPY, from_bfloat16, to_bfloat16
from trainshed_reduction.native import __main__ as compilation
from trainshed_reduction.native import library
from trainshed_reduction.native.library import Library
from trainshed_reduction.variables import NATIVE
from trainshed_reduction.wire import DType, Reduction

RANKS = 3
SIZES = (1, 7, 8, 9, 31, 4099)
ALL = np.arange(1 << 16, dtype=np.uint16)
"""The bits of all fp16 and bf16 numbers."""
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]
KINDS = [
    (dtype, reduction)
    for dtype in DType
    for reduction in Reduction
    if reduction is Reduction.SUM or not dtype.is_integer
]


@pytest.fixture(scope="module", params=["native", "portable"])
def part(request: pytest.FixtureRequest) -> Library:
    return shared_library(*PORTABLE if request.param == "portable" else ())


def reduce(part: Library, dtype: DType, reduction: Reduction, payloads: list[bytes]) -> bytes:
    """Sum the payloads. They have odd addresses, as in a receive buffer."""
    parts = [memoryview(bytearray(b"x" + payload))[1:] for payload in payloads]
    result = bytearray(len(payloads[0]))
    wide = bytearray((2 if dtype.itemsize == 2 else 1) * len(result))
    target, total = _memory(result), _memory(wide if dtype.itemsize == 2 else result)
    count = len(result) // dtype.itemsize
    if dtype.itemsize == 2:
        part.functions.sums_widen(dtype, total, _memory(parts[0]), count)
    else:
        result[:] = parts[0]
    for addend in parts[1:]:
        part.functions.sums_add(dtype, total, _memory(addend), count)
    is_average = reduction is Reduction.AVERAGE
    part.functions.sums_finish(dtype, is_average, len(parts), total, target, count)
    return bytes(result)


def _memory(buffer: bytearray | memoryview) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * len(buffer)).from_buffer(buffer)


def widen(dtype: DType, data: bytes) -> Any:
    """Convert values to the type in which they are added."""
    if dtype is DType.BFLOAT16:
        return from_bfloat16(np.frombuffer(data, np.uint16))
    own = np.frombuffer(data, NUMPY[dtype])
    return own.astype(np.float32) if dtype is DType.FLOAT16 else own


def round_sum(dtype: DType, values: Any) -> bytes:
    """Round to nearest, ties to even. All NaNs have one form."""
    if dtype.itemsize > 2:
        return values.tobytes()
    if dtype is DType.FLOAT16:
        halves = values.astype(np.float16).view(np.uint16)
    else:
        halves = to_bfloat16(values)
    quiet = 0x7E00 if dtype is DType.FLOAT16 else 0x7FC0
    return np.where(np.isnan(values), np.uint16(quiet), halves).tobytes()


@pytest.mark.parametrize(("dtype", "reduction"), KINDS)
def test_sums_equal_numpys_sums_bit_by_bit(part: Library, dtype: DType, reduction: Reduction) -> None:
    """spec/reduction#exactness: The inputs are random bits. Integers wrap around, and a mean is divided
    once."""
    chance = np.random.default_rng(6)
    for size in SIZES:
        payloads = [chance.bytes(size * dtype.itemsize) for _ in range(RANKS)]
        ours = reduce(part, dtype, reduction, payloads)
        with np.errstate(all="ignore"):
            total = widen(dtype, payloads[0])
            for payload in payloads[1:]:
                total = total + widen(dtype, payload)
            if reduction is Reduction.AVERAGE:
                total = total / total.dtype.type(RANKS)
            theirs = round_sum(dtype, total)
        if dtype in (DType.FLOAT32, DType.FLOAT64):
            # The processor decides which of two NaNs' payload bits the sum has.
            same = np.frombuffer(ours, np.uint8) == np.frombuffer(theirs, np.uint8)
            assert (same.reshape(size, -1).all(axis=1) | np.isnan(total)).all()
            assert (np.isnan(widen(dtype, ours)) == np.isnan(total)).all()
        else:
            assert ours == theirs


def finish(part: Library, dtype: DType, values: Floats) -> Any:
    """Return the half-precision results of sums."""
    total = values.astype(np.float32)
    result = np.zeros(len(total), np.uint16)
    part.functions.sums_finish(dtype, 0, RANKS, total.ctypes, result.ctypes, len(total))
    return result


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_every_half_precision_number_is_widened_to_exactly_the_same_value(
    part: Library, dtype: DType
) -> None:
    """spec/reduction#exactness: All 65,536 halves are widen to their value, including subnormals, zeros and
    infinities. Except for NaNs, rounding returns the same bits."""
    wide = np.zeros(len(ALL), np.float32)
    part.functions.sums_widen(dtype, wide.ctypes, ALL.ctypes, len(ALL))
    expected = widen(dtype, ALL.tobytes())
    none = np.isnan(expected)
    assert (np.isnan(wide) == none).all()
    assert (wide.view(np.uint32) == expected.view(np.uint32))[~none].all()
    quiet = 0x7E00 if dtype is DType.FLOAT16 else 0x7FC0
    assert (finish(part, dtype, wide) == np.where(none, quiet, ALL)).all()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_half_precision_sums_are_rounded_to_nearest_ties_to_even(part: Library, dtype: DType) -> None:
    """spec/reduction#exactness: The inputs are the middle between two neighbours, and the next fp32 numbers
    on both sides of it."""
    exact = widen(dtype, ALL.tobytes())
    finite = np.flatnonzero(np.isfinite(exact[:-1]) & np.isfinite(exact[1:]))
    below = ALL[finite]
    middle = ((exact[finite].astype(np.float64) + exact[finite + 1]) / 2).astype(np.float32)
    assert np.array_equal(finish(part, dtype, middle), below + (below & 1))
    assert np.array_equal(finish(part, dtype, np.nextafter(middle, exact[finite])), below)
    assert np.array_equal(finish(part, dtype, np.nextafter(middle, exact[finite + 1])), below + 1)


def test_sums_beyond_the_largest_half_precision_number_become_infinite(part: Library) -> None:
    """spec/reduction: 65520 is the first number that is nearer to the next power than to the largest fp16."""
    values = np.array([65519.996, 65520, -65520, 3.4e38], np.float32)
    halves = finish(part, DType.FLOAT16, values)
    assert halves.tolist() == [0x7BFF, 0x7C00, 0xFC00, 0x7C00]
    assert finish(part, DType.BFLOAT16, values[3:]).tolist() == [0x7F80]


def run_python(environ: dict[str, str], text: str) -> str:
    """Return the output of code in a new interpreter."""
    run = execute(
        *(sys.executable, "-c", "from trainshed_reduction.native import library\n" + text),
        env={**os.environ, "PYTHONPATH": str(library.DIRECTORY.parents[1]), **environ},
        check=True,
    )
    return run.stdout.strip()


LOAD = "print(library.load() is not None, library.reason())"


def test_c_library_is_loaded_from_the_configured_directory(tmp_path: Path) -> None:
    """spec/reduction: If it cannot be loaded, the package reports the reason."""
    here = {NATIVE: str(tmp_path)}
    if not (library.DIRECTORY / library.name()).exists():
        assert "was not built" in run_python(here, LOAD)
    assert run_python({NATIVE: str(shared_library().path.parent)}, LOAD) == "True"
    (tmp_path / library.name()).write_bytes(b"no library")
    assert "cannot be loaded" in run_python(here, LOAD)


def test_c_library_built_from_different_sources_is_not_loaded() -> None:
    """spec/reduction: The file name of such a library contains another digest."""
    here = {NATIVE: str(shared_library().path.parent)}
    changed = "import pathlib\nlibrary.SOURCES = library.SOURCES[:-1]\n" + LOAD
    assert "was not built" in run_python(here, changed)


def test_failed_build_of_the_c_library_reports_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spec/reduction#exactness: A failed build leaves no files."""
    monkeypatch.setenv("CC", str(tmp_path / "missing"))
    assert "no C compiler" in compilation.build(tmp_path / "a")[1]
    monkeypatch.setenv("CC", "gcc '-O2")
    assert "no C compiler" in compilation.build(tmp_path / "a")[1]
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'library.c:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(compiler))
    path, why = compilation.build(tmp_path / "b")
    assert path is None
    assert "no such thing" in why
    compiler.write_text("#!/bin/sh\nsleep 60 & wait\n")
    monkeypatch.setattr(compilation, "COMPILER_TIMEOUT", 0.1)
    assert "longer than" in compilation.build(tmp_path / "b")[1]
    assert list((tmp_path / "b").iterdir()) == []
