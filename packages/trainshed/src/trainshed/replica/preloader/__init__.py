"""A preloader is a running Python of a runtime that has imported the runtime's frameworks and forks programs,
so that these begin after the imports.

The runtime's own interpreter runs it (`forking`). In a fork, `becoming` turns the process into the requested
program's, and runs that.

The preloader itself never reads anything of a job. Its fork for a connecting main process (the caller) reads
the namespaces to enter, at level `user` also that of its user, and forks there: the namespace's first
process, the shim, adopts that orphan, which becomes the program. Runs on Python 3.6.

1. The caller (`supervisor.warm_start`) sends a line of JSON, with handles: of the namespaces, the output
streams, the
   namespace of the program's own users, and of control groups to join.
2. The fork answers `ready PID`, with the handle for supervising its calls if they are supervised; or `cold
WHY`, and
   does not run the program.
3. The caller sends `go`. If it has given up before, its connection is closed, and the fork ends.

Its configuration is JSON: modules (to import), control (the handle of a socket: the preloader sends
`{"imported": {MODULE: VERSION}}` or `{"refused": WHY}` to it, and exits when the other end is closed),
listener (the handle of a listening Unix socket), root (the runtime's directory), idle (seconds without a
program before it exits).
"""

START = (
    "import sys; sys.path[0] = sys.argv[2]; "
    "from trainshed.replica.preloader import forking; forking.serve(sys.argv[1])"
)
"""Code for an interpreter; its arguments are the configuration and the directory from which to import
`trainshed`."""
