"""Causes of failed replicas and attempts, and the ordered table of consequences (spec/failures#rules)."""
