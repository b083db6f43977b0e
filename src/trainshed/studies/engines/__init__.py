"""The engines of others behind the algorithm port: optional extras, for comparison and for users who want
them."""
