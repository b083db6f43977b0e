"""All-reduce by reducers compared with gloo's ring, over links of a known rate, on one machine (`./dev
bench-reduction`).
"""
