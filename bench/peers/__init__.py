"""Other systems on this machine, compared with the same floor as Trainshed. This package starts, measures and
stops them. A system that cannot run on this machine is skipped with a note."""

from bench.measures import Row
from bench.peers import ray, slurm


def measure(rounds: int, jobs: int) -> list[Row]:
    """Return the rows of all other systems, measured one after another."""
    return [*slurm.measure(rounds, jobs), *ray.measure(rounds, jobs)]
