"""Runs the control loop, the only writer of state: applies events, commits, carries out what follows."""
