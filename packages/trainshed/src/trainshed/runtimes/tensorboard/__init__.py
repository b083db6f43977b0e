"""The family of the TensorBoard that shows what jobs wrote: its lock and its smoke test."""
