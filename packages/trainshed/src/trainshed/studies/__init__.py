"""Proposes trials and decides when to stop them, as pure functions of the stored trials and a seed."""
