"""The optional part in C: sums and the worker's transfer, in one shared library without Python's or NumPy's
headers.

Everything works without it, slower. `compilation` makes it where there is a compiler, `library` finds it.
"""
