"""What is ours: describe, timeline, live logs and live progress of a job, in plain JSON."""
