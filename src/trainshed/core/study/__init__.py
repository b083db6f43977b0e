"""What a study and its trials are and what may happen to them: parameters, measurements, states. Pure."""
