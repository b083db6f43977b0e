"""A runtime's Python that has imported its frameworks, and forks programs that begin after these imports.

Run by the runtime's own interpreter as `python3 -m trainshed.replica.preloader.program`. While that comes
up, `site` imports `sitecustomize`, which imports the frameworks, looks whether they can be forked
(`forking`), and serves requests. In a forked program that becomes what it is to be (`becoming`), that import
returns, the interpreter comes up, and goes on with the program in place of `program`, which there is none of
(`main_program`). So what lies beneath a program on the stack is what lies beneath it in an interpreter of its
own.

The preloader itself never reads anything of a job. It accepts a connection and forks; the child reads whose
namespaces it is to enter, and forks twice more: the first fork is in the process namespace, the second has a
parent that ends there, so that the namespace's first process, the guardian, becomes its parent. Only then it
reads arguments and environment. Runs on Python 3.6.

Spoken with the guardian (`supervisor.warm_start`) over one connection. Guardian: a line of JSON with the
namespaces' handles beside it. Program: `ready PID`, with the handle of its filter of calls beside it if there
is one. Guardian: a second line, with handles to join control groups by. Program: `started`. Instead of either
answer, `cold WHY`: it has not run, and will not.

The variable TRAINSHED_PRELOADER is JSON: modules (what to import), control (the handle of a socket: its other
end is told `{"imported": {MODULE: VERSION}, "python": [MAJOR, MINOR]}` or `{"refused": WHY}`; each byte that
comes over it afterwards is answered by one, which says that programs are taken; the preloader ends when it is
closed), listener (the handle of a listening Unix socket), printed (the handles of two files for its own
output and errors), root (the runtime's directory), idle (seconds without a program after which it ends).
"""
