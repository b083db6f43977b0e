"""All-reduce by reducers against gloo's ring, over links of a known rate, on one machine (`./dev
bench-reduction`)."""
