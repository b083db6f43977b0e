"""A preloader is a running Python of a runtime that has imported the runtime's frameworks and forks
programs, so that these begin after the imports.

The runtime's own interpreter runs it (`forking`). In a fork, `becoming` turns the process into the requested
program's, and `running` runs that.

The preloader itself never reads anything of a job. A main process that connects (the caller) passes the
process namespace of its fork, and at level `user` that of its user; a child of the preloader enters these and
forks. The fork is an orphan there, so that the namespace's first process, the shim,
becomes its parent. Only there it reads arguments and environment. Runs on Python 3.6.

The caller (`supervisor.warm_start`) and the fork take turns on one connection. The caller's lines are JSON,
accompanied by file handles:

1. caller: the process namespace to enter, at level `user` that of its user as well; fork: `waiting PID`
2. caller: the other namespaces, the user, the output streams, the filter of calls; fork: `ready`, with the
   handle of that filter beside it if there is one
3. caller: arguments, environment and limits, and handles to join control groups by; fork: `started`

Instead of any answer the fork may say `cold WHY`: it has not run the program, and will not.

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
