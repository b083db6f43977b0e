"""A preloader is a running Python of a runtime that has imported the runtime's frameworks and forks
programs, so that these begin after the imports.

The runtime's own interpreter runs it (`forking`). In a fork, `becoming` turns the process into the requested
program's, and runs that.

The preloader itself never reads anything of a job. Its fork for a main process that connects (the caller)
reads which namespaces to enter, at level `user` that of its user as well, and forks there: that orphan
is adopted by the namespace's first process, the shim, and becomes the program. Runs on Python 3.6.

1. The caller (`supervisor.warm_start`) sends a line of JSON, with handles: of the namespaces, the output
   streams, the namespace of the program's own users, and of control groups to join.
2. The fork answers `ready PID`, with the handle on which its calls are asked about if they are; or
   `cold WHY`, and does not run the program.
3. The caller says `go`. If it has given up before, its connection is closed, and the fork ends.

Its configuration is JSON: modules (what to import), control (the handle of a socket: its other end is told
`{"imported": {MODULE: VERSION}}` or `{"refused": WHY}`; the preloader ends when it is closed), listener (the
handle of a listening Unix socket), root (the runtime's directory), idle (seconds without a program after
which it ends).
"""

START = (
    "import sys; sys.path[0] = sys.argv[2]; "
    "from trainshed.replica.preloader import forking; forking.serve(sys.argv[1])"
)
"""What an interpreter is told to run; its arguments are the configuration and the directory
that `trainshed` is imported from."""
