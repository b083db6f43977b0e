"""Runs the control loop, the only writer of state: applies events, commits, executes instructions."""
