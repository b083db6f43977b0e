"""Composes the document by which a shim starts a program, from launch plan, slot and machine. All engines
that run our shim share it."""
