"""Proposes trials and says when to stop them, behind one algorithm port. Pure functions of stored trials and
a seed."""
