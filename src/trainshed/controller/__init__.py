"""The only writer of state: lease, core step, commit, carry out, report back as events."""
