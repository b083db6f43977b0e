"""Quality of the tuning algorithms: simple regret of each candidate, on functions with a known optimum and on
two real tasks."""
