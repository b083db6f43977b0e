"""The store in one SQLite file: group-commit writer, readers beside it, numbered migrations; in memory for
simulations."""
