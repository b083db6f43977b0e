"""Quality of the tuning algorithms: simple regret on functions with a known optimum and on two real tasks, by
candidate.
"""
