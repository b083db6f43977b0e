"""What a hyperparameter tuning job is and what may happen to it: trials that are custom jobs of their own.
Pure."""
