"""The definition of a hyperparameter tuning job and its possible changes; each of its trials is a
custom job. Pure."""
