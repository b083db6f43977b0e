"""A preloader is a running Python of a runtime that has imported the runtime's frameworks and forks
programs, so that these begin after the imports.

The runtime's own interpreter runs it as `python3 -m trainshed.replica.preloader.program`. While that comes
up, `site` imports `sitecustomize`, which imports the frameworks, looks whether they can be forked
(`forking`), and serves requests. In a fork, `becoming` turns it into the requested program; then the import
of `sitecustomize` returns, and the interpreter finishes its start. There is no module `program`: the
interpreter runs the job's program in its place (`main_program`). So a program has the same stack beneath it
as in an interpreter of its own.

The preloader itself never reads anything of a job. A guardian that connects passes the process namespace of
its fork, and the preloader forks into that (if it belongs to another user namespace, a child enters both and
forks). The fork is an orphan there, so that the namespace's first process, the guardian,
becomes its parent. Only there it reads arguments and environment. Runs on Python 3.6.

The guardian (`supervisor.warm_start`) and the fork take turns on one connection. The guardian's lines are
JSON, accompanied by file handles:

1. guardian: the process namespace to enter, at level `user` that of its user as well; fork: `waiting PID`
2. guardian: the other namespaces, the user, the output streams, the filter of calls; fork: `ready`, with the
   handle of that filter beside it if there is one
3. guardian: arguments, environment and limits, and handles to join control groups by; fork: `started`

Instead of any answer the fork may say `cold WHY`: it has not run the program, and will not.

The variable TRAINSHED_PRELOADER is JSON: modules (what to import), control (the
handle of a socket: its other end is told `{"imported": {MODULE: VERSION}, "python": [MAJOR, MINOR]}` or
`{"refused": WHY}`; each byte that comes over it afterwards is answered by one, which says that programs are
taken; the preloader ends when it is closed), listener (the handle of a listening Unix socket), printed (the
handles of two files for its own output and errors), root (the runtime's directory), idle (seconds without a
program after which it ends).
"""
