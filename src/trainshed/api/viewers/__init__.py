"""TensorBoard for people, in a browser: links that open it, the page that waits for it, the way to it."""
