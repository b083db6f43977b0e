"""The C library: a worker's transfer, a reducer's groups, and sums. It uses no headers of Python or NumPy.

Reducers require this library. `__main__` builds it with a C compiler, and `library` loads it.
"""
