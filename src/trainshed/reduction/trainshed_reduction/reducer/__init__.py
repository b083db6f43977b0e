"""A reducer: adds what workers send, chunk by chunk and in the order of their ranks, and sends the sums
back."""
