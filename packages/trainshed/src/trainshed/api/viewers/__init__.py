"""TensorBoard in a browser: the page behind a link, and the way to the view that it opens."""
