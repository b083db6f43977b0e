"""Programs that print all visible properties of their interpreter and process, and programs that
end in every possible way."""

PRINTS_SURROUNDINGS = '''
"""Its own words."""
import builtins, gc, json, locale, os, platform, resource, signal, site, socket, stat, sys, sysconfig
import tempfile, threading, traceback, warnings

def change(path):
    try:
        os.chmod(path, os.stat(path).st_mode & 0o7777)
    except OSError as error:
        return error.strerror
    return "it can be changed"

def status():
    wanted = ("Name", "Umask", "Uid", "Gid", "Groups", "Cap", "NoNewPrivs", "Seccomp", "SigBlk", "SigCgt",
              "PPid", "Threads", "CoreDumping", "THP_enabled")
    lines = open("/proc/self/status").read().splitlines()
    return [line for line in lines if line.startswith(wanted)]

def known(name):
    return getattr(sys, name, "older")

def handles():
    found = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            found[name] = os.readlink("/proc/self/fd/" + name).partition(":")[0]
        except OSError:
            pass
    return found

seen = {
    "argv": sys.argv,
    "orig_argv": known("orig_argv"),
    "path": sys.path,
    "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix],
    "executable": [sys.executable, known("_base_executable"), known("_home"), known("_stdlib_dir")],
    "flags": repr(sys.flags),
    "xoptions": [sys._xoptions, sys.warnoptions, sys.dont_write_bytecode, known("pycache_prefix")],
    "limits": [sys.getrecursionlimit(), sys.getswitchinterval()],
    "environ": dict(os.environ),
    "comm": open("/proc/self/comm").read(),
    "exe": os.path.basename(os.readlink("/proc/self/exe")),
    "change of exe": change("/proc/self/exe"),
    "status": status(),
    "cwd": os.getcwd(),
    "session": [os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0), os.getppid()],
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
    "oom": open("/proc/self/oom_score_adj").read(),
    "processors": sorted(os.sched_getaffinity(0)),
    "rlimits": [(name, resource.getrlimit(getattr(resource, name))) for name in dir(resource)
                if name.startswith("RLIMIT_")],
    "groups": open("/proc/self/cgroup").read(),
    "handles": handles(),
    "dumpable": os.access("/proc/self/mem", os.R_OK) and os.stat("/proc/self/mem").st_uid == os.getuid(),
    "threads": [len(os.listdir("/proc/self/task")), [each.name for each in threading.enumerate()]],
    "signals": {int(n): repr(signal.getsignal(n)) for n in range(1, 65)
                if not callable(signal.getsignal(n)) or n == signal.SIGINT},
    "mask": repr(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "main": {name: repr(value) for name, value in list(vars().items()) if name.startswith("__")
             and name not in ("__builtins__", "__warningregistry__")},
    "main_is": sys.modules["__main__"].__dict__ is globals(),
    "spec": __spec__ and [__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached,
                          __spec__.has_location],
    "loader": type(__loader__).__name__,
    "custom": "sitecustomize" in sys.modules,
    "streams": [[s.name, s.encoding, s.errors, s.line_buffering, s.isatty(), s.seekable(),
                 type(s.buffer).__name__, getattr(s, "write_through", "older")]
                for s in (sys.stdout, sys.stderr)]
               + [sys.stdin.encoding, sys.stdin.read(), sys.stdin.name],
    "originals": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.excepthook.__name__],
    "gc": [gc.isenabled(), gc.get_threshold()],
    "filters": [repr(each) for each in warnings.filters],
    "meta_path": [getattr(each, "__name__", type(each).__name__) for each in sys.meta_path],
    "site": [site.PREFIXES, site.USER_BASE, site.USER_SITE, site.ENABLE_USER_SITE],
    "sysconfig": [sysconfig.get_paths(), sysconfig.get_config_var("prefix")],
    "temporary": tempfile.gettempdir(),
    "locale": [locale.getlocale(), locale.setlocale(locale.LC_ALL)],
    "node": [platform.node(), socket.gethostname()],
    "builtins": sorted(vars(builtins)),
    "ours": sorted(name for name in sys.modules if name.startswith("trainshed")),
    "cached": sorted(each for each in sys.path_importer_cache if "trainshed/src" in each),
}
print(json.dumps(seen))
'''

FRAMEWORK = '''
"""Stands for a framework: it takes its time, and keeps what it has found."""
import json, logging, multiprocessing, os, platform, random, sysconfig, tempfile, threading
__version__ = "1.2"
DRAWN = random.random()
HERE = tempfile.gettempdir(), platform.node(), sysconfig.get_paths()
KEY = bytes(multiprocessing.current_process().authkey)
'''

PROGRAMS = {
    "look": PRINTS_SURROUNDINGS,
    "pack/__init__": "",
    "pack/__main__": "import sys; print('main of a package', __name__, __package__, sys.argv)",
    "pack/deep": PRINTS_SURROUNDINGS,
    "broken/__init__": "def fail():\n    import json\n    json.loads('{')\nfail()\n",
    "broken/module": "print('never')",
    "unfound/__init__": "import no_such_module_anywhere",
    "unfound/module": "print('never')",
    "empty/__init__": "",
    "raises": "def f():\n    raise ValueError('x') from KeyError('y')\nprint('before')\nf()\n",
    "grouped": "raise ExceptionGroup('several', [ValueError(1), TypeError(2)])",
    "syntax": "print('before')\nx = = 1\n",
    "says": "import sys; sys.exit('a text')",
    "coded": "import sys; print('half a line', end=''); sys.exit(3)",
    "none": "import sys; sys.exit(None)",
    "hard": "import os; print('out'); os._exit(7)",
    "killed": "import os, signal; print('out'); os.kill(os.getpid(), signal.SIGKILL)",
    "crashed": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT); import time; time.sleep(5)",
    "piped": "import os\nr, w = os.pipe(); os.close(r)\nprint('before')\nos.write(w, b'x')\n",
    "late": "import atexit, threading, time\natexit.register(print, 'at exit')\nsaid = threading.Event()\n"
    "threading.Thread(target=lambda: (said.wait(), time.sleep(0.05), print('thread'))).start()\n"
    "print('main')\nsaid.set()\n",
    "finalized": "class A:\n    def __del__(self): print('deleted', flush=True)\na = A()\n",
    "hooked": "import sys\nsys.excepthook = lambda *e: print('hook', e[0].__name__, len(e))\n1 / 0\n",
    "warns": "import warnings\nwarnings.warn('mind')\nwarnings.warn('old', DeprecationWarning)\n",
    "children": "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'import sys, os; "
    'print(sys.prefix, sys.path[1:], len(os.environ), sorted(os.listdir("/proc/self/fd"))[:3])\'], '
    "capture_output=True, text=True).stdout)\n",
    "spawned": "import multiprocessing, os\ndef f(x): return x * x\nif __name__ == '__main__':\n"
    "    for kind in ('fork', 'spawn', 'forkserver'):\n"
    "        with multiprocessing.get_context(kind).Pool(1) as pool: print(kind, pool.map(f, [2, 3]))\n",
    "unpickled": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))), A.__module__)\n",
    "importing": "import importlib, look_alike\n"
    "print(look_alike.__file__, importlib.import_module('pack').__path__)\n",
    "look_alike": "",
    "typed": "import dataclasses, typing\n@dataclasses.dataclass\nclass A:\n    x: 'int'\n"
    "print(typing.get_type_hints(A), __annotations__ if '__annotations__' in vars() else None)\n",
    "hashed": "import os\nprint(os.environ['PYTHONHASHSEED'], hash('a'), sep=chr(10))\n",
    "drawn": "import json, random, framework, os, multiprocessing\nprint(json.dumps([random.random(), "
    "framework.DRAWN, hash('a'), multiprocessing.current_process().authkey.hex()]))\n",
}
"""Program texts by module name with slashes."""

RUN = {
    "look": ("--flag", "a b"),
    "pack": ("x",),
    **dict.fromkeys(
        (
            *("pack.deep", "broken.module", "unfound.module", "empty", "missing", "missing.module"),
            *("raises", "grouped", "syntax", "says", "coded", "none", "hard", "killed", "crashed"),
            *("interrupted", "piped", "late", "finalized", "hooked", "warns", "children"),
            *("spawned", "unpickled", "importing", "typed"),
        ),
        (),
    ),
}
"""Arguments of the programs that run both cold and warm."""

SHORT = {
    name: RUN[name]
    for name in (
        *("look", "pack", "broken.module", "missing", "raises", "says", "coded", "killed"),
        *("interrupted", "late", "finalized"),
    )
}
"""The subset that every test run has time for."""

FILES = (
    *("look", "raises", "grouped", "syntax", "says", "none", "interrupted", "late", "finalized"),
    *("children", "spawned", "unpickled", "importing", "typed"),
)
"""Programs that also run as files."""
SHORT_FILES = ("look", "raises", "syntax")

PACKED = {
    "task.py": f"{PRINTS_SURROUNDINGS}\nimport beside\n"
    "print(beside.__file__, sorted(os.listdir()), __file__)\n"
    "beside.fail()\n",
    "beside.py": "def fail():\n    raise ValueError('beside')\n",
}
"""Files of a program that `trainshed run` packs."""
