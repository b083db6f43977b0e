"""What simulated trials have reported, as the store's reader of metrics would give it; it outlives program and slot."""

from collections import defaultdict

from trainshed.core.names import JobUid
from trainshed.core.study.trials import Measurement
from trainshed.engines.sim.programs import Reports


class Notebooks:
    """By job: when its program was first started, and the newest value of each metric at each step."""

    def __init__(self) -> None:
        self._started: dict[JobUid, int] = {}
        self._values: defaultdict[JobUid, dict[int, dict[str, float]]] = defaultdict(dict)
        self._last: dict[tuple[JobUid, int], int] = {}

    def write(self, uid: JobUid, started: int, at: int, report: Reports) -> None:
        """`started`: when the program that reports was started, ns."""
        self._started.setdefault(uid, started)
        self._values[uid].setdefault(report.step, {})[report.metric] = report.value
        self._last[uid, report.step] = at

    def measurements(self, job_uid: JobUid, started: int = 0) -> tuple[Measurement, ...]:
        """Like `MetricsReader.measurements`: ascending by step, the metrics of each in the order of their names."""
        begin = started or self._started.get(job_uid, 0)
        steps = sorted(self._values.get(job_uid, {}).items())
        return tuple(
            Measurement(
                tuple(sorted(values.items())), step, max(0, self._last[job_uid, step] - begin)
            )
            for step, values in steps
        )

    def tags(self, job_uid: JobUid) -> tuple[str, ...]:
        """Names of all metrics that were reported, in order."""
        values = self._values.get(job_uid, {}).values()
        return tuple(sorted({tag for step in values for tag in step}))

    def forget(self, job_uid: JobUid) -> None:
        """Nothing is remembered beside what was written."""
