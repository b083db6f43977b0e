"""The simulated engine: slots, programs and faults in virtual time, behind the same port as every engine."""
