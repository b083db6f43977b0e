"""What is written down of a running program: its log, its use of the machine, its metrics and its notes."""
