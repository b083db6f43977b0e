"""Studies and their trials: parameters, measurements, states and allowed changes. Pure."""
