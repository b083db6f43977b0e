"""Whether a program can use reducers, by the libraries that it has loaded (spec/reduction#reports); and how
its reports are read."""

import json
from typing import Any

import pytest

from trainshed.replica.observe import reduction_reports, reduction_verdicts
from trainshed.replica.system import processes

SITE = "/usr/lib/python3/site-packages"
TORCH = f"{SITE}/torch/lib/libtorch_cpu.so"
TENSORFLOW = f"{SITE}/tensorflow/libtensorflow_framework.so.2"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
HOROVOD = f"{SITE}/horovod/torch/mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"


@pytest.mark.parametrize(
    ("libraries", "kind"),
    [
        ((), reduction_verdicts.NOTHING),
        (
            ("/usr/lib/libc.so.6", f"{SITE}/numpy/core/_multiarray_umath.so"),
            reduction_verdicts.NOTHING,
        ),
        ((TORCH,), reduction_verdicts.PYTORCH),
        ((f"{SITE}/torch/lib/libtorch.so", NCCL), reduction_verdicts.PYTORCH),
        ((TENSORFLOW,), reduction_verdicts.TENSORFLOW),
        (
            (f"{SITE}/tensorflow/python/_pywrap_tensorflow_internal.so",),
            reduction_verdicts.TENSORFLOW,
        ),
        ((TENSORFLOW, TORCH), reduction_verdicts.PYTORCH),
        ((HOROVOD, TORCH, NCCL), reduction_verdicts.HOROVOD),
        ((f"{SITE}/horovod/tensorflow/mpi_lib.so", TENSORFLOW), reduction_verdicts.HOROVOD),
        ((f"{SITE}/jaxlib/xla_extension.so",), reduction_verdicts.JAX),
        ((f"{SITE}/jaxlib/libjax_common.so", NCCL), reduction_verdicts.JAX),
        ((f"{SITE}/mxnet/libmxnet.so",), reduction_verdicts.MXNET),
        ((f"{SITE}/xgboost/lib/libxgboost.so", NCCL), reduction_verdicts.XGBOOST),
        ((NCCL,), reduction_verdicts.NCCL),
        (("/usr/lib/libmpi.so.40",), reduction_verdicts.MPI),
        (("/app/mpi_lib_of_mine.so", "/app/libtorchlike.so"), reduction_verdicts.NOTHING),
    ],
)
def test_what_a_program_runs(libraries: tuple[str, ...], kind: str) -> None:
    """spec/reduction: who brings others along counts, in whatever order they were loaded."""
    assert (
        reduction_verdicts.classify(libraries)
        == reduction_verdicts.classify(libraries[::-1])
        == kind
    )


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (reduction_verdicts.HOROVOD, "Horovod"),
        (reduction_verdicts.TENSORFLOW, "TensorFlow"),
        (reduction_verdicts.JAX, "JAX"),
        (reduction_verdicts.MXNET, "MXNet"),
        (reduction_verdicts.XGBOOST, "XGBoost"),
        (reduction_verdicts.NCCL, "NCCL without PyTorch"),
        (reduction_verdicts.MPI, "MPI"),
        (reduction_verdicts.PYTORCH, "trainshed_reduction.pytorch.allreduce_hook"),
        (reduction_verdicts.NOTHING, "so far"),
    ],
)
def test_a_verdict_names_the_framework_and_the_reducers(kind: str, said: str) -> None:
    text = reduction_verdicts.text(kind, 4)
    assert said in text and "the 4 reducers stay idle" in text
    assert "the reducer stays idle" in reduction_verdicts.text(kind, 1)
    assert len(text) <= reduction_reports.LONGEST_TEXT
    if kind not in (reduction_verdicts.PYTORCH, reduction_verdicts.NOTHING):
        assert "Take worker pool 2 out" in text and "DistributedDataParallel" in text


def test_at_the_end_what_was_seen_once_is_named() -> None:
    """spec/reduction: a program that ended between two looks at it."""
    assert "runs TensorFlow" in reduction_verdicts.text_at_end(reduction_verdicts.TENSORFLOW, 4)
    text = reduction_verdicts.text_at_end(reduction_verdicts.NOTHING, 4)
    assert "without using the job's 4 reducers" in text and "Take worker pool 2 out" in text
    assert "the job's reducer:" in reduction_verdicts.text_at_end(reduction_verdicts.NOTHING, 1)
    assert len(text) <= reduction_reports.LONGEST_TEXT


def test_libraries_of_a_process_that_is_gone() -> None:
    assert processes.libraries(2**22 + 1) == set()


def read(**fields: Any) -> reduction_reports.Report:
    return reduction_reports.Report(json.dumps(fields).encode())


def test_a_report_is_read() -> None:
    """spec/reduction#reports: as `trainshed_reduction.reports` writes it."""
    report = read(
        notes=[{"id": "mode", "severity": "INFO", "text": "pure"}],
        metrics={"sent_bytes": 7, "wait_seconds": [0.5, 1]},
    )
    assert [(note.name, note.severity, note.text) for note in report.notes] == [
        ("mode", "INFO", "pure")
    ]
    assert report.metrics == {"sent_bytes": 7, "wait_seconds": [0.5, 1]}


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'"notes"'])
def test_what_is_no_report(data: bytes) -> None:
    with pytest.raises(reduction_reports.NoReport):
        reduction_reports.Report(data)


def test_of_a_hostile_report_what_makes_no_sense_is_left_out() -> None:
    notes: list[Any] = [1, {}, {"id": "", "text": "x"}, {"id": "a", "text": " "}, {"id": 1}, None]
    notes.append({"id": "b" * 99, "text": "one\ntwo\x1b[31m" + "x" * 9999, "severity": ["ERROR"]})
    metrics = {"a": "1", "b": True, "c": [[1]], "d": float("inf"), "e": 10**30, "f": [1] * 2000}
    report = read(notes=notes, metrics=metrics | {"x" * 65: 1, "good": -1.5})
    (note,) = report.notes
    assert (len(note.name), note.severity) == (64, "INFO")
    assert note.text.startswith("one two\N{REPLACEMENT CHARACTER}[31mxxx")
    assert len(note.text) == reduction_reports.LONGEST_TEXT and note.text.endswith("…")
    assert report.metrics == {"good": -1.5}
    assert read(notes={"id": 1}, metrics=[1]).notes == []
    assert len(read(metrics={str(n): n for n in range(1000)}).metrics) == 64
