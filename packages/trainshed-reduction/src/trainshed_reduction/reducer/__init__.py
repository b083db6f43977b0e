"""A reducer adds the chunks of workers in the order of ranks, and returns the sums."""
