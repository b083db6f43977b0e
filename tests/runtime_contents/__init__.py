"""What programs for the hosted images expect of them: the documented packages, and the modules that programs
import most."""
