"""What a hyperparameter tuning job is and what may happen to it; each of its trials is a custom job. Pure."""
