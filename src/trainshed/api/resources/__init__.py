"""What the surfaces do alike with jobs, studies and operations: in and out go records, never messages."""
