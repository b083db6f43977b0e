"""Other systems on this machine, compared with the same floor as Trainshed's rows. Starts, measures and stops
them. A peer that cannot run on this machine is skipped with a note.
"""

from bench.measures import Row
from bench.peers import ray, slurm


def measure(rounds: int, jobs: int) -> list[Row]:
    """Return the rows of all peers, measured one after the other."""
    return [*slurm.measure(rounds, jobs), *ray.measure(rounds, jobs)]
