"""The part in C: a worker's transfer, a reducer's groups, and sums, in one shared library without Python's or
NumPy's headers.

Reducers are used where it is there. `compilation` makes it where there is a compiler, `library` finds it.
"""
