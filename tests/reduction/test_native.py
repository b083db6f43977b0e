"""The sums in C are those of NumPy, bit for bit (spec/reduction#exactness); and nothing depends on a
compiler."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.reduction.native_library import PORTABLE, build
from trainshed_reduction.arithmetic import Kernels, NumpyKernels
from trainshed_reduction.native import compilation, library
from trainshed_reduction.native.sums import NativeKernels
from trainshed_reduction.variables import NATIVE
from trainshed_reduction.wire import DType, Reduction

NUMPY = NumpyKernels()
RANKS = 3
SIZES = (1, 7, 8, 9, 31, 4099)


@pytest.fixture(scope="module", params=["native", "portable"])
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kernels:
    flags = PORTABLE if request.param == "portable" else ()
    return NativeKernels(build(tmp_path_factory.mktemp("native"), *flags))


def reduce(kernels: Kernels, dtype: DType, reduction: Reduction, payloads: list[bytes]) -> bytes:
    """As a reducer does; the payloads stand at odd places, as they may in a receive buffer."""
    parts = [memoryview(bytearray(b"x" + each))[1:] for each in payloads]
    first, *others = parts
    total = first
    if dtype.itemsize == 2:
        total = memoryview(bytearray(2 * len(first)))
        kernels.widen(dtype, total, first)
    with np.errstate(all="ignore"):
        for each in others:
            kernels.add(dtype, total, each)
        kernels.finish(dtype, reduction, len(payloads), total, first)
    return bytes(first)


def numbers(dtype: DType, data: bytes) -> "np.ndarray[tuple[int], np.dtype[np.floating]]":
    if dtype is DType.BFLOAT16:
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    kind = {2: np.float16, 4: np.float32, 8: np.float64}[dtype.itemsize]
    return np.frombuffer(data, kind)


@pytest.mark.parametrize(
    ("dtype", "reduction"),
    [
        (dtype, reduction)
        for dtype in DType
        for reduction in Reduction
        if reduction is Reduction.SUM or not dtype.is_integer
    ],
)
def test_sums_are_those_of_numpy(kernels: Kernels, dtype: DType, reduction: Reduction) -> None:
    """spec/reduction#exactness: any bits in, the same bits out, whoever adds; integers wrap around."""
    chance = np.random.default_rng(6)
    for size in SIZES:
        payloads = [chance.bytes(size * dtype.itemsize) for _ in range(RANKS)]
        ours = reduce(kernels, dtype, reduction, payloads)
        theirs = reduce(NUMPY, dtype, reduction, payloads)
        if dtype in (DType.FLOAT32, DType.FLOAT64):
            # Which of two NaNs' payload bits go on is the processor's affair.
            same = np.frombuffer(ours, np.uint8) == np.frombuffer(theirs, np.uint8)
            none = np.isnan(numbers(dtype, theirs))
            assert (same.reshape(size, -1).all(axis=1) | none).all()
            assert (np.isnan(numbers(dtype, ours)) == none).all()
        else:
            assert ours == theirs


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_every_half_there_is(kernels: Kernels, dtype: DType) -> None:
    """spec/reduction#exactness: each of the 65,536 is widened to its own value, and comes back from it as it
    was but for NaNs."""
    data = np.arange(1 << 16, dtype=np.uint16)
    total = bytearray(4 << 16)
    kernels.widen(dtype, total, bytearray(data.tobytes()))
    wide = np.frombuffer(total, np.float32)
    expected = numbers(dtype, data.tobytes())
    none = np.isnan(expected)
    assert (np.isnan(wide) == none).all()
    assert (wide[~none] == expected[~none]).all()
    assert (np.signbit(wide) == np.signbit(expected))[~none].all()
    back = bytearray(2 << 16)
    kernels.finish(dtype, Reduction.SUM, RANKS, total, back)
    quiet = 0x7E00 if dtype is DType.FLOAT16 else 0x7FC0
    assert (np.frombuffer(back, np.uint16) == np.where(none, quiet, data)).all()


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_rounding_to_halves(kernels: Kernels, dtype: DType) -> None:
    """spec/reduction#exactness: to the nearest, ties to even: at, just below and just above the middle of
    every two neighbours."""
    places = (
        1 << 12 if dtype is DType.FLOAT16 else 1 << 15
    )  # of fp32, in half of a half's last place
    middles = np.arange(0, 1 << 32, places, dtype=np.uint64)
    for shift in (-1, 0, 1):
        bits = ((middles + np.uint64((1 << 32) + shift)) & np.uint64(0xFFFFFFFF)).astype(np.uint32)
        ours, theirs = bytearray(2 * len(bits)), bytearray(2 * len(bits))
        kernels.finish(dtype, Reduction.SUM, RANKS, bytearray(bits.tobytes()), ours)
        NUMPY.finish(dtype, Reduction.SUM, RANKS, bytearray(bits.tobytes()), theirs)
        assert ours == theirs


def test_lengths_are_checked(kernels: Kernels) -> None:
    """spec/reduction: nothing is read or written beyond a buffer's end."""
    for dtype, total, payload in (
        (DType.FLOAT32, 400, 396),
        (DType.FLOAT32, 396, 400),
        (DType.FLOAT16, 400, 400),
        (DType.INT64, 12, 12),
    ):
        with pytest.raises(ValueError, match="do not go with"):
            kernels.add(dtype, bytearray(total), bytearray(payload))
        with pytest.raises(ValueError, match="do not go with"):
            kernels.finish(dtype, Reduction.SUM, RANKS, bytearray(total), bytearray(payload))


def told(environ: dict[str, str], text: str) -> str:
    """What a fresh interpreter prints."""
    run = subprocess.run(
        [sys.executable, "-c", "from trainshed_reduction.native import library\n" + text],
        env={**os.environ, "PYTHONPATH": str(library.DIRECTORY.parents[1]), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()


LOAD = "print(library.load() is not None, library.reason())"


def test_where_it_is_looked_for(tmp_path: Path) -> None:
    """spec/reduction: without the library everything works, and one can ask why it is not there."""
    here = {NATIVE: str(tmp_path)}
    if not (library.DIRECTORY / library.name()).exists():
        assert "was not built" in told(here, LOAD)
    built = build(tmp_path)
    assert built.path == tmp_path / library.name()
    assert told(here, LOAD) == "True"
    assert told({NATIVE: "off"}, LOAD) == "False TRAINSHED_REDUCTION_NATIVE=off"
    built.path.unlink()  # It is loaded here: its bytes are not to be changed.
    built.path.write_bytes(b"no library")
    assert "cannot be loaded" in told(here, LOAD)


def test_another_version_is_not_taken(tmp_path: Path) -> None:
    """spec/reduction: a library of other sources has another name, and one of another interface is
    refused."""
    build(tmp_path)
    changed = "import pathlib\nlibrary.SOURCES = library.SOURCES[:-1]\n" + LOAD
    assert "was not built" in told({NATIVE: str(tmp_path)}, changed)
    newer = "library.ABI += 1\n" + LOAD
    assert f"has interface {library.ABI}, not {library.ABI + 1}" in told(
        {NATIVE: str(tmp_path)}, newer
    )


def test_no_compiler_or_none_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """spec/reduction#exactness: the C part is optional; what is wrong is said, and nothing half done is
    left."""
    monkeypatch.setenv("CC", str(tmp_path / "missing"))
    assert "no C compiler" in compilation.build(tmp_path / "a")[1]
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'sums.c:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CC", str(compiler))
    path, why = compilation.build(tmp_path / "b")
    assert path is None
    assert "no such thing" in why
    compiler.write_text("#!/bin/sh\nsleep 60 & wait\n")
    monkeypatch.setattr(compilation, "LIMIT", 0.1)
    assert "longer than" in compilation.build(tmp_path / "b")[1]
    assert list((tmp_path / "b").iterdir()) == []
