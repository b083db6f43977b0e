"""The C library: a worker's transfer, a reducer's groups, and sums. It uses no headers of Python or NumPy.

Without this library, reducers cannot be used. `__main__` builds it with a C compiler, and `library` loads it.
"""
