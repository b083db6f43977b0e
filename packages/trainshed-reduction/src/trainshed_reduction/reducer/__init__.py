"""A reducer adds the chunks of all workers, in the order of their ranks, and returns the sums."""
