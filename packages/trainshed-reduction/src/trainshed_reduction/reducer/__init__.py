"""A reducer: adds up what workers send, chunk by chunk in the order of ranks, and sends the sums back."""
