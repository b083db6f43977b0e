"""A preloader is a Python process that has imported a runtime's frameworks. Programs start in forks of it,
without waiting for the imports.

The runtime's own interpreter runs the preloader (`forking`). In a fork, `program_start` turns the process
into the requested program and runs it.

The preloader itself never reads data of a job. When a main process (the caller) connects, the preloader forks
a child, which reads the request and enters the program's namespaces. There the child forks again and exits.
The namespace's process 1, the shim, adopts the orphan, which becomes the program. Runs on Python 3.6.

1. The caller (`supervisor.warm_start`) sends a line of JSON with file descriptors of the namespaces, the
   output streams, the namespace of the program's own users, and the control groups to join.
2. The fork responds with `ready PID`, and with the file descriptor for the program's socket calls if the shim
   handles them. Or it responds with `cold REASON`, and does not run the program.
3. The caller sends `go`. If the caller closes the connection instead, the fork exits.

The preloader's configuration is a JSON object:
- modules: modules to import
- control: file descriptor of a socket. The preloader sends `{"imported": {MODULE: VERSION}}` or
  `{"refused": REASON}` on it, and exits when the peer closes it.
- listener: file descriptor of a listening Unix socket
- root: the runtime's directory
- idle: seconds without a program after which the preloader exits
"""

START = (
    "import sys; sys.path[0] = sys.argv[2]; "
    "from trainshed.replica.preloader import forking; forking.serve(sys.argv[1])"
)
"""Python code that runs a preloader. Its arguments are the configuration and the directory that contains the
package `trainshed`."""
