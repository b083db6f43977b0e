"""The part in C: a worker's transfer, a reducer's groups, and sums, in one shared library without Python's or
NumPy's headers.

Reducers are used only where it exists. `__main__` builds it if there is a compiler, `library` finds it.
"""
