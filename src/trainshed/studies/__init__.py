"""Proposes trials and says when to stop them, behind one algorithm port. Pure in stored trials and a seed."""
