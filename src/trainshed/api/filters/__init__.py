"""Filter expressions of list methods: text to tree, tree to predicate. Pure."""
