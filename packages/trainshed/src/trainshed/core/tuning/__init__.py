"""Hyperparameter tuning jobs and their allowed changes. Each trial is a custom job. Pure."""
