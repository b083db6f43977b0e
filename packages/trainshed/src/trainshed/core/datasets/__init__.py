"""Datasets, the assignment of their rows to splits, and the writing of rows to files. Pure."""
