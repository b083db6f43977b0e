"""A lab with Slurm's accounting: slurmdbd over a MariaDB of its own, so that associations and their limits
are enforced. Both are Debian's packages, unpacked into the checkout's cache of tests; nothing of them is
installed, and the database listens at a Unix socket alone."""

import os
import signal
import subprocess
from pathlib import Path

from tests.e2e.running import CACHE
from tests.slurm.lab import SlurmLab
from tests.slurm.nodes import HUB, until

_PACKAGES = (
    *("mariadb-server-core", "mariadb-client-core", "libmariadb3", "mariadb-common"),
    *("slurmdbd", "slurm-wlm-mysql-plugin", "liburing2", "libaio1", "libnuma1", "libsnappy1v5"),
)
_ROOT = CACHE / "slurmdbd"
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_ENFORCED = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=hub
AccountingStorageEnforce=associations,limits,qos
"""


def why_no_accounting() -> str:
    """Why it cannot be had here; "" = it can. Unpacks what is missing."""
    if (_ROOT / "usr/sbin/slurmdbd").exists():
        return ""
    fetched = _ROOT.with_name("slurmdbd.packages")
    fetched.mkdir(parents=True, exist_ok=True)
    try:
        command = ["apt-get", "download", *_PACKAGES]
        subprocess.run(command, cwd=fetched, check=True, capture_output=True, timeout=120)
        for package in sorted(fetched.glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, _ROOT], check=True, capture_output=True)
    except (OSError, subprocess.SubprocessError) as failure:
        return f"needs Debian's packages {', '.join(_PACKAGES)}: {failure}"
    return ""


class AccountedLab(SlurmLab):
    """One in which `root` may use the account `research`."""

    def __init__(self, directory: Path, shown: list[Path]) -> None:
        super().__init__(directory, shown, nodes=2, extra=_ENFORCED)
        self._database: subprocess.Popen[bytes] | None = None

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self._database is not None:
            self._database.send_signal(signal.SIGKILL)
            self._database.wait()

    def account(self, *words: str) -> str:
        """What sacctmgr says."""
        return self.run(HUB, ["sacctmgr", "--immediate", *words])

    def _start_controller(self, *options: str) -> None:
        if self._database is None:
            self._start_database()
            self._start_accounting()
        super()._start_controller(*options)

    def _start_database(self) -> None:
        data, at = self.directory / "database", self.directory / "database.sock"
        (data / "slurm_acct_db").mkdir(parents=True)
        server, shared = _ROOT / "usr/sbin/mariadbd", _ROOT / "usr/share/mysql"
        command = [server, "--no-defaults", f"--datadir={data}", f"--lc-messages-dir={shared}"]
        command += ["--user=root", "--skip-networking", "--skip-grant-tables"]
        # Procedures, in which slurmdbd asks for limits, are kept in the server's own tables.
        tables = (shared / "mysql_system_tables.sql").read_text()
        subprocess.run(
            [*command, "--bootstrap"],
            input=f"create database mysql;\nuse mysql;\n{tables}",
            env=self._environment(),
            text=True,
            check=True,
            capture_output=True,
        )
        with (self.directory / "log" / "mariadbd").open("ab") as log:
            self._database = subprocess.Popen(
                [*command, f"--socket={at}"], env=self._environment(), stdout=log, stderr=log
            )
        for _ in until("the database", 60):
            if at.exists():
                return

    def _start_accounting(self) -> None:
        own = self.directory / "etc" / "slurmdbd.conf"
        plugins = f"/{_LIBRARIES}/slurm-wlm:{_ROOT}/{_LIBRARIES}/slurm-wlm"
        own.write_text(
            "AuthType=auth/munge\nDbdHost=hub\nSlurmUser=root\nStorageType=accounting_storage/mysql\n"
            f"StorageHost=localhost\nStorageUser=root\nPluginDir={plugins}\n"
            f"PidFile={self.directory}/slurmdbd.pid\nLogFile={self.directory}/log/slurmdbd\n"
        )
        own.chmod(0o600)
        with (self.directory / "log" / "slurmdbd.out").open("ab") as log:
            daemon = str(_ROOT / "usr/sbin/slurmdbd")
            self.popen(HUB, [daemon, "-D"], output=log, env=self._environment())
        for _ in until("the accounting", 60):
            try:
                self.account("add", "cluster", "lab")
            except subprocess.CalledProcessError:
                continue
            break
        self.account("add", "account", "research", "cluster=lab")
        self.account("add", "user", "root", "account=research", "cluster=lab")

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(_ROOT / _LIBRARIES),
            "MYSQL_UNIX_PORT": str(self.directory / "database.sock"),
        }
