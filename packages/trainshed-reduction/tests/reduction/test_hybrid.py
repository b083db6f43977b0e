"""Workers that reduce beside too few reducers: exact sums, over TLS too, and what becomes of it when one dies
(spec/reduction#security)."""

import re
import ssl
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.reduction import hybrid
from tests.reduction.certificates import Authority, authority
from tests.reduction.hybrid import Worker, right
from tests.reduction.native_library import shared
from tests.reduction.ranks import settings
from tests.reduction.reducers import TOKEN, Address, Reducers
from trainshed_reduction import proof
from trainshed_reduction.client.formation import OwnReducer
from trainshed_reduction.wire import Hello


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ours") / "pem")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("theirs") / "pem")


def _files(trusted: Authority, shown: Authority | None) -> Mapping[str, str]:
    """As a job with certificates of its own says it."""
    told = {"ca_file": str(trusted.root)}
    if shown is not None:
        told |= {"cert_file": str(shown.certificate), "key_file": str(shown.key)}
    return told


def _texts(trusted: Authority, shown: Authority) -> Mapping[str, str]:
    """As the service says it."""
    return {
        "ca": trusted.root.read_text(),
        "cert": shown.certificate.read_text(),
        "key": shown.key.read_text(),
    }


def _sums(workers: list[Worker], *seeds: int) -> None:
    for seed in seeds:
        for worker in workers:
            worker.sum(seed)
        assert [worker.line() for worker in workers] == [right(seed)] * len(workers)


@pytest.mark.parametrize(
    # Files are read in test_all_workers_are_pure_where_one_has_nothing_to_show.
    "given",
    [pytest.param("files", marks=pytest.mark.soak), "texts"],
)
def test_workers_that_reduce_speak_tls(tmp_path: Path, ours: Authority, given: str) -> None:
    """spec/reduction#security (hybrid, security): with the job's certificate, or the user's, every connection
    is TLS and every bit as without."""
    told = _files(ours, ours) if given == "files" else _texts(ours, ours)
    with (
        Reducers(1, tls=ours) as reducers,
        hybrid.workers(reducers.addresses, tmp_path, told) as workers,
    ):
        for worker in workers:
            said = worker.line()
            assert "hybrid" in said and "over TLS" in said
        _sums(workers, 0, 1)


def test_a_worker_s_own_reducer_has_to_show_the_job_s_certificate(
    ours: Authority, theirs: Authority
) -> None:
    """spec/reduction#security: the other workers verify it like a reducer of the pool; another authority's is
    not believed."""
    for shown in (ours, theirs):
        beside = OwnReducer("127.0.0.1", settings((), **_texts(theirs, shown)), shared())
        try:
            fault = _meet(beside.address, proof.worker_tls(str(theirs.root)))
            assert ("certificate verify failed" in fault) if shown is ours else not fault
        finally:
            beside.close()


def _meet(address: Address, tls: ssl.SSLContext) -> str:
    """Why a worker does not believe a reducer; "" if it does."""
    hello = Hello(proof.group_digest("met"), 1, 0, 1)
    try:
        proof.connect(address, TOKEN, hello, tls=tls)[0].close()
    except ssl.SSLError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    # That one cannot be read is found where it is read, as that there is none.
    "lacking",
    ["none", "other", pytest.param("unreadable", marks=pytest.mark.soak)],
)
def test_all_workers_are_pure_where_one_has_nothing_to_show(
    tmp_path: Path, ours: Authority, theirs: Authority, lacking: str
) -> None:
    """spec/reduction#security (hybrid, security): sums go on over TLS, all ranks decide alike, and the line
    on the mode says whose lack it is."""
    told, why = {
        "none": (_files(ours, None), "rank 1 has no certificate for a reducer of its own"),
        "other": (_files(ours, theirs), "rank 1 has a certificate in .*certificate verify failed"),
        "unreadable": (
            {**_files(ours, ours), "cert_file": str(tmp_path / "missing.pem")},
            "rank 1 has a certificate in .*missing.pem.*No such file",
        ),
    }[lacking]
    with (
        Reducers(1, tls=ours) as reducers,
        hybrid.workers(
            reducers.addresses, tmp_path, _files(ours, ours), told, _files(ours, ours)
        ) as workers,
    ):
        for worker in workers:
            said = worker.line()
            assert "pure over TLS" in said
            assert re.search(why, said), said
        _sums(workers, 0)


@pytest.mark.parametrize(
    ("lost_seconds", "is_secured"),
    [
        (30.0, False),
        (1.5, True),
        # Each of the two is there once.
        pytest.param(30.0, True, marks=pytest.mark.soak),
        pytest.param(1.5, False, marks=pytest.mark.soak),
    ],
)
def test_a_worker_that_is_gone_with_its_own_reducer_is_not_waited_for(
    tmp_path: Path, ours: Authority, lost_seconds: float, is_secured: bool
) -> None:
    """spec/reduction#losses: its reducer does not answer either, which is no reason to wait until that one is
    given up; nor, where it is given up sooner, for the word of who is gone."""
    told = {
        "absent_seconds": 3.0,
        "lost_seconds": lost_seconds,
        **(_texts(ours, ours) if is_secured else {}),
    }
    with (
        Reducers(1, tls=ours if is_secured else None) as reducers,
        hybrid.workers(reducers.addresses, tmp_path, told) as workers,
    ):
        assert all("hybrid" in worker.line() for worker in workers)
        _sums(workers, 0)
        workers[1].kill()
        left = (workers[0], workers[2])
        for worker in left:
            worker.sum(1)
        for worker in left:
            said = worker.line()
            assert "a rank is gone" in said
            # The one that is told first may be missed as well by then.
            assert re.search(r"for rank(s 0,)? 1\b|for ranks 1, 2", said), said
