"""What a shim starts a program by, composed from launch plan, slot and machine: shared by all engines that
run our shim."""
