"""Other systems on this machine, measured beside the same floor as our own rows. Brings up, measures, takes
down."""
