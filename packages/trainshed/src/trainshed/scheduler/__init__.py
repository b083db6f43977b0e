"""Decides which jobs run on which nodes, which wait, and which are preempted, from a snapshot. Pure."""
