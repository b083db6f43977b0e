"""What a job, attempt, replica, trial, study, operation is and what may happen to it. Pure."""
