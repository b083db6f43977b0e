"""Studies and their trials: parameters, measurements, states, and what may happen to them. Pure."""
