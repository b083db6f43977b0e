"""Other projects' engines behind the algorithm port: optional extras, for comparison and by choice."""
