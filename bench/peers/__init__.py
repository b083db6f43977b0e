"""Other systems on this machine, measured beside the same floor as our own rows. Brings up, measures, takes
down. A peer that cannot run here is left out, with a note."""

from bench.measures import Row
from bench.peers import ray, slurm


def measure(rounds: int, jobs: int) -> list[Row]:
    """All the peers' rows, one peer after the other."""
    return [*slurm.measure(rounds, jobs), *ray.measure(rounds, jobs)]
