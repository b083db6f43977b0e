"""Compares all-reduce by reducers with gloo's ring, over links of a known rate, on one machine (`./dev
bench-reduction`)."""
