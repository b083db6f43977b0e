"""What tests are written with: the simulated engine and its faults. Nothing of the service imports it."""
