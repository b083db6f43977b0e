"""Filter expressions of list methods: parsed to a tree, and compiled to a predicate. Pure."""
