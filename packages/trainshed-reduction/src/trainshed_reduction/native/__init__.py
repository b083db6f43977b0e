"""The C library. It transfers a worker's chunks, runs a reducer's groups, and computes sums. It uses no
headers of Python or NumPy. Without this library, reducers cannot be used. `__main__` builds it with a C
compiler, and `library` loads it."""
