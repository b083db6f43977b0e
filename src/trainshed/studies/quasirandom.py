"""The start of a study: the defaults or the centre first, then a scrambled Sobol sequence. Pure."""

from trainshed.studies.routines import Array, sobol
from trainshed.studies.space import Space

_LONGEST = 1 << 20
"""Points after which the sequence begins anew; a study that long has left the start far behind."""


def starting_point(space: Space, number: int, seed: int) -> Array:
    """The genotype for trial `number` (from 1 on) of a study, shape (p,)."""
    if number <= 1:
        return space.first
    return space.place(sobol(space.width, (number - 1) % _LONGEST, 1, seed))[0]
