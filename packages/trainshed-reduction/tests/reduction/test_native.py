"""The sums in C are those of NumPy, bit for bit (spec/reduction#exactness); and what is said where there is
no such library."""

import ctypes
import os
import stat
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands import execute
from tests.reduction.native_library import PORTABLE, shared
from tests.reduction.ranks import NUMPY, from_bfloat16, to_bfloat16
from trainshed_reduction.native import __main__ as compilation
from trainshed_reduction.native import library
from trainshed_reduction.native.library import Library
from trainshed_reduction.variables import NATIVE
from trainshed_reduction.wire import DType, Reduction

RANKS = 3
SIZES = (1, 7, 8, 9, 31, 4099)
ALL = np.arange(1 << 16, dtype=np.uint16)
"""Every fp16 and bf16 that there is."""
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]
KINDS = [
    (dtype, reduction)
    for dtype in DType
    for reduction in Reduction
    if reduction is Reduction.SUM or not dtype.is_integer
]


@pytest.fixture(scope="module", params=["native", "portable"])
def part(request: pytest.FixtureRequest) -> Library:
    return shared(*PORTABLE if request.param == "portable" else ())


def reduce(part: Library, dtype: DType, reduction: Reduction, payloads: list[bytes]) -> bytes:
    """The payloads stand at odd places, as they may in a receive buffer."""
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


def widened(dtype: DType, data: bytes) -> Any:
    """As what it is added up in."""
    if dtype is DType.BFLOAT16:
        return from_bfloat16(np.frombuffer(data, np.uint16))
    own = np.frombuffer(data, NUMPY[dtype])
    return own.astype(np.float32) if dtype is DType.FLOAT16 else own


def rounded(dtype: DType, values: Any) -> bytes:
    """To the nearest, ties to even; what is no number in one form."""
    if dtype.itemsize > 2:
        return values.tobytes()
    if dtype is DType.FLOAT16:
        halves = values.astype(np.float16).view(np.uint16)
    else:
        halves = to_bfloat16(values)
    quiet = 0x7E00 if dtype is DType.FLOAT16 else 0x7FC0
    return np.where(np.isnan(values), np.uint16(quiet), halves).tobytes()


@pytest.mark.parametrize(("dtype", "reduction"), KINDS)
def test_sums_are_those_of_numpy(part: Library, dtype: DType, reduction: Reduction) -> None:
    """spec/reduction#exactness: any bits in, the same bits out; integers wrap around, and a mean is divided
    once."""
    chance = np.random.default_rng(6)
    for size in SIZES:
        payloads = [chance.bytes(size * dtype.itemsize) for _ in range(RANKS)]
        ours = reduce(part, dtype, reduction, payloads)
        with np.errstate(all="ignore"):
            total = widened(dtype, payloads[0])
            for payload in payloads[1:]:
                total = total + widened(dtype, payload)
            if reduction is Reduction.AVERAGE:
                total = total / total.dtype.type(RANKS)
            theirs = rounded(dtype, total)
        if dtype in (DType.FLOAT32, DType.FLOAT64):
            # Which of two NaNs' payload bits go on is the processor's affair.
            same = np.frombuffer(ours, np.uint8) == np.frombuffer(theirs, np.uint8)
            assert (same.reshape(size, -1).all(axis=1) | np.isnan(total)).all()
            assert (np.isnan(widened(dtype, ours)) == np.isnan(total)).all()
        else:
            assert ours == theirs


def finished(part: Library, dtype: DType, values: Floats) -> Any:
    """The halves that sums become."""
    total = values.astype(np.float32)
    result = np.zeros(len(total), np.uint16)
    part.functions.sums_finish(dtype, 0, RANKS, total.ctypes, result.ctypes, len(total))
    return result


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_every_half_there_is(part: Library, dtype: DType) -> None:
    """spec/reduction#exactness: each of the 65,536 is widened to its own value, subnormals, zeros and
    infinities too, and comes back from it as it was but for NaNs."""
    wide = np.zeros(len(ALL), np.float32)
    part.functions.sums_widen(dtype, wide.ctypes, ALL.ctypes, len(ALL))
    expected = widened(dtype, ALL.tobytes())
    none = np.isnan(expected)
    assert (np.isnan(wide) == none).all()
    assert (wide.view(np.uint32) == expected.view(np.uint32))[~none].all()
    quiet = 0x7E00 if dtype is DType.FLOAT16 else 0x7FC0
    assert (finished(part, dtype, wide) == np.where(none, quiet, ALL)).all()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_the_nearest_is_taken_and_of_two_the_even_one(part: Library, dtype: DType) -> None:
    """spec/reduction#exactness: one rounding: exactly between two neighbours, and one step of fp32 to either
    side of that."""
    exact = widened(dtype, ALL.tobytes())
    finite = np.flatnonzero(np.isfinite(exact[:-1]) & np.isfinite(exact[1:]))
    below = ALL[finite]
    middle = ((exact[finite].astype(np.float64) + exact[finite + 1]) / 2).astype(np.float32)
    assert np.array_equal(finished(part, dtype, middle), below + (below & 1))
    assert np.array_equal(finished(part, dtype, np.nextafter(middle, exact[finite])), below)
    assert np.array_equal(finished(part, dtype, np.nextafter(middle, exact[finite + 1])), below + 1)


def test_too_much_is_infinite(part: Library) -> None:
    """spec/reduction: 65520 is the first that is nearer to what would come after the greatest fp16."""
    values = np.array([65519.996, 65520, -65520, 3.4e38], np.float32)
    halves = finished(part, DType.FLOAT16, values)
    assert halves.tolist() == [0x7BFF, 0x7C00, 0xFC00, 0x7C00]
    assert finished(part, DType.BFLOAT16, values[3:]).tolist() == [0x7F80]


def told(environ: dict[str, str], text: str) -> str:
    """What a fresh interpreter prints."""
    run = execute(
        *(sys.executable, "-c", "from trainshed_reduction.native import library\n" + text),
        env={**os.environ, "PYTHONPATH": str(library.DIRECTORY.parents[1]), **environ},
        check=True,
    )
    return run.stdout.strip()


LOAD = "print(library.load() is not None, library.reason())"


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    """spec/reduction: one can ask why it is not there."""
    here = {NATIVE: str(tmp_path)}
    if not (library.DIRECTORY / library.name()).exists():
        assert "was not built" in told(here, LOAD)
    assert told({NATIVE: str(shared().path.parent)}, LOAD) == "True"
    (tmp_path / library.name()).write_bytes(b"no library")
    assert "cannot be loaded" in told(here, LOAD)


def test_another_version_is_not_taken() -> None:
    """spec/reduction: a library of other sources has another name."""
    here = {NATIVE: str(shared().path.parent)}
    changed = "import pathlib\nlibrary.SOURCES = library.SOURCES[:-1]\n" + LOAD
    assert "was not built" in told(here, changed)


def test_no_compiler_or_none_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/reduction#exactness: what is wrong is said, and nothing half done is left."""
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
    monkeypatch.setattr(compilation, "LIMIT", 0.1)
    assert "longer than" in compilation.build(tmp_path / "b")[1]
    assert list((tmp_path / "b").iterdir()) == []
