"""Decides which jobs run on which nodes, which jobs wait, and which jobs are preempted. The input is a
snapshot of the cluster. Pure."""
