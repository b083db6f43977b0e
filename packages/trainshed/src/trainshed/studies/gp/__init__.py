"""The default algorithm: a Gaussian-process bandit after the published Vizier paper (arXiv 2408.11527)."""
