"""Functions on rows of other people's libraries, as they are: each file runs in a Python that has its library.

A function is `f(rows, rng, **settings)`; its docstring says which form of rows it takes. A file imports its library and
NumPy, nothing of dpaudit, and is named `..._functions.py`: the folder is on the path there, so that a file `opendp.py`
would hide the library itself. Where a library cannot be seeded, its own random source is used as it is.
"""
