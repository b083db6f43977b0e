"""The simulated engine: slots, programs and faults in virtual time, behind the port of all engines."""
