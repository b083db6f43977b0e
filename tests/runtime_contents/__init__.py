"""Expected contents of the hosted images: the documented packages, and the most imported modules."""
