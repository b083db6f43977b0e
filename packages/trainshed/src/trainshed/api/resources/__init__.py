"""What the APIs share for jobs, studies and operations; takes and returns records, never messages."""
