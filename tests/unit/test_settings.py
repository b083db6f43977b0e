"""Settings from file, environment and command line: precedence and validation."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from trainshed.serve.addresses import browsers_address
from trainshed.serve.settings import LOCAL_ENGINE, Settings, SettingsError, load
from trainshed.serve.up import close_directory, command


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction] - a fixture
    names = ("PORT", "GRACE", "NODES", "PROJECT", "CACHE", "EXACT_RUNTIMES", "TLS_CERT", "TLS_KEY")
    for name in names:
        monkeypatch.delenv(f"TRAINSHED_{name}", raising=False)
    monkeypatch.setenv("TRAINSHED_DATA", str(tmp_path / "data"))


def settings_error(tmp_path: Path, text: str) -> str:
    """Return the error of an invalid configuration file."""
    config = tmp_path / "c.toml"
    config.write_text(text)
    with pytest.raises(SettingsError) as refused:
        load(config, {})
    return str(refused.value)


def test_command_line_and_environment_override_the_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('port = 1\ngrace = 2\nproject = "file"\nexact_runtimes = true\nsmtp = ""\n')
    monkeypatch.setenv("TRAINSHED_PORT", "3")
    monkeypatch.setenv("TRAINSHED_PROJECT", "environment")
    settings = load(config, {"port": 4, "nodes": None})
    assert (settings.port, settings.grace, settings.project) == (4, 2.0, "environment")
    assert settings.exact_runtimes and settings.smtp is None
    assert settings.data == tmp_path / "data"


@pytest.mark.parametrize(
    "line",
    [
        'port = "x"',
        "port = 70000",
        "grace = -0.1",
        "grace = nan",
        "nodes = 0",
        "exact_runtimes = 2",
        'project = ""',
        'region = "mars-west1"',
        'web_url = "https://train.example.org:84430"',
        'web_url = "HTTPS://train.example.org"',
        'project = "No Project"',
        'node_accelerators = "NVIDIA_TESLA_T5=1"',
        'smtp = "mail.example.org"',
        'smtp = "smtp://me:geheim@mail.example.org"',
        'retention_jobs = "month"',
        "failure_rules = 1",
        'data = ""',
        'data = "~nobody-of-that-name/data"',
    ],
)
def test_error_of_an_invalid_setting_names_the_setting_and_the_file(tmp_path: Path, line: str) -> None:
    text = settings_error(tmp_path, line)
    assert str(tmp_path / "c.toml") in text and line.split(" ", maxsplit=1)[0] in text


def test_empty_data_option_is_rejected() -> None:
    """`--data "$DATA"` with an empty variable would fill the working directory."""
    with pytest.raises(SettingsError, match="--data: the value is empty, but must be a directory"):
        load(None, {"data": ""})


def test_directory_settings_resolve_symbolic_links(tmp_path: Path) -> None:
    """Jobs cannot access home directories, so they need the target path of a link."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "home").symlink_to("disk")
    options = {"data": str(tmp_path / "home/data"), "cache": str(tmp_path / "home/cache")}
    settings = load(None, options)
    assert (settings.data, settings.cache) == (tmp_path / "disk/data", tmp_path / "disk/cache")


def test_tilde_in_an_environment_variable_is_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """systemd units and environment files of containers do not expand tildes."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TRAINSHED_DATA", "~/here")
    monkeypatch.setenv("TRAINSHED_CACHE", "~/there")
    settings = load(None, {})
    assert (settings.data, settings.cache) == (tmp_path / "here", tmp_path / "there")


def test_settings_error_lists_all_faults_with_suggestions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "c.toml"
    config.write_text('node = 2\ncapacity = "strikt"\n[[failure_rules]]\nname = "A"')
    monkeypatch.setenv("TRAINSHED_GRACE", "-1")
    with pytest.raises(SettingsError) as refused:
        load(config, {"nodes": 0, "region": "us-centrall", "isolation": "vm"})
    lines = [line.strip() for line in str(refused.value).splitlines()]
    assert "--nodes: 0 is not 1 or more" in lines
    assert "TRAINSHED_GRACE: '-1' is not 0 or more" in lines
    assert "--isolation: 'vm' is not one of own-user, root, user, session." in lines
    assert f"{config}: capacity: 'strikt' is not one of relaxed, strict. Did you mean strict?" in lines
    assert any("unknown setting 'node'. Did you mean nodes" in line for line in lines)
    assert any(line.startswith(f"{config}: failure_rules[0].name: ") for line in lines)
    assert any("Did you mean us-central1" in line for line in lines)


def test_mail_notifications_require_the_smtp_setting(tmp_path: Path) -> None:
    table = '[[notify]]\nname = "team"\nmail = ["a@example.org"]\n'
    assert "set smtp" in settings_error(tmp_path, table)
    config = tmp_path / "c.toml"
    config.write_text(f'smtp = "smtp://mail/t@example.org"\n{table}')
    assert load(config, {}).notify[0].mail == ("a@example.org",)


@pytest.mark.parametrize("text", ["= 1", b"\xff\xfe\x00".decode("latin-1")])
def test_invalid_toml_settings_file_is_rejected(tmp_path: Path, text: str) -> None:
    config = tmp_path / "c.toml"
    config.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match="cannot be read"):
        load(config, {})


def test_cluster_engines_use_strict_capacity_by_default() -> None:
    """The service requests allocations only on nodes with enough free resources."""
    assert not Settings().strict
    assert Settings(engine="slurm").strict
    assert Settings(engine="kubernetes").strict
    assert not Settings(engine="slurm", capacity="relaxed").strict
    handed_down = {"slurm": {"queue": "slurm"}}
    assert not Settings(engine="slurm", engines=handed_down).strict
    assert Settings(engine="slurm", engines={"slurm": {"queue": "trainshed"}}).strict
    by_kueue = {"kubernetes": {"queue": "kueue", "local_queue": "users"}}
    assert not Settings(engine="kubernetes", engines=by_kueue).strict
    for engine, wrong in (
        ("slurm", {"capacity": "strict", "engines": handed_down}),
        ("slurm", {"engines": {"slurm": {"queue": "slurm", "machines": [{"types": ["a2-*"]}]}}}),
        ("kubernetes", {"capacity": "strict", "engines": by_kueue}),
    ):
        with pytest.raises(SettingsError, match="remove one of these settings"):
            load(None, {"engine": engine, **wrong})
    assert Settings(capacity="strict").strict


def test_every_setting_is_used_in_the_source() -> None:
    """Some component must read each field of `Settings`, by the name of the field."""
    sources = Path(__file__).parents[2].glob("packages/*/src/**/*.py")
    text = "".join(path.read_text() for path in sources if "settings" in path.read_text())
    fields = {*Settings.__struct_fields__} - {*LOCAL_ENGINE}
    assert not {name for name in fields if not re.search(rf"(settings|self)\.{name}\b", text)}


def test_settings_page_lists_every_setting_with_the_default_value() -> None:
    """docs/settings.md contains every setting with its sources and its default, in order."""
    page = (Path(__file__).parents[2] / "docs/settings.md").read_text()
    rows = [row.strip("| ").split("|") for row in page.splitlines() if row.startswith("| `")]
    documented = [tuple(cell.strip().strip("`") for cell in row[:4]) for row in rows]
    options = {
        option.name: option.opts[0] for option in command.params if option.name in Settings.__struct_fields__
    }
    places = {"data": "~/.trainshed", "cache": "~/.cache/trainshed"}
    words = {"None": "", "False": "false", "True": "true"}
    tables = ("failure_rules", "buckets", "images", "engines", "notify", "oidc")
    assert documented == [
        (
            name,
            f"TRAINSHED_{name.upper()}" if name not in tables else "",
            options.get(name, ""),
            words.get(default, default),
        )
        for name in Settings.__struct_fields__
        for default in [places.get(name) or str(getattr(Settings(), name))]
    ]


@pytest.mark.parametrize(
    ("lines", "advice"),
    [
        ("[engines.local]\nnodes = 2", "write the settings of the local engine at the top"),
        ("[engines]\nmine = 2", "must be a table; write [engines.mine]"),
    ],
)
def test_invalid_engine_table_error_has_advice(tmp_path: Path, lines: str, advice: str) -> None:
    assert advice in settings_error(tmp_path, lines)


def test_only_the_service_requires_secrets_of_settings_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trainshed backup` and `trainshed doctor` read the same file without these environment variables."""
    config = tmp_path / "c.toml"
    config.write_text(
        '[[oidc]]\nname = "Corp"\nissuer = "https://sso.corp.example"\nclient_id = "x"\nsecret_env = "CORP"\n'
        '[[notify]]\nname = "ops"\nwebhook = "http://a"\nsecret_env = "CORP"\n'
        '[[buckets]]\nname = "far-1"\nstore = "gcs"\nservice_account_env = "CORP"\n'
    )
    monkeypatch.delenv("CORP", raising=False)
    assert load(config, {}).oidc[0].name == "Corp"
    # The service never starts with this host.
    refused = CliRunner().invoke(command, ["--config", str(config), "--host", "0.0.0.0"])
    tables = re.findall(r"(\w+)\[0\]\.\w+_env: the environment variable", refused.stderr)
    assert (refused.exit_code, tables) == (1, ["buckets", "notify", "oidc"])
    monkeypatch.setenv("CORP", "geheim")
    assert load(config, {}, to_serve=True).oidc


def test_trailing_slash_of_the_web_url_setting_is_removed() -> None:
    """An OpenID Connect issuer compares redirect addresses character by character."""
    settings = load(None, {"web_url": "https://train.example.org/"})
    assert browsers_address(settings, 8080) == "https://train.example.org"


@pytest.mark.parametrize(("present", "missing"), [("tls_cert", "tls_key"), ("tls_key", "tls_cert")])
def test_tls_certificate_without_a_key_or_key_without_a_certificate_is_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, present: str, missing: str
) -> None:
    """The two settings may come from different sources. An empty value counts as missing."""
    monkeypatch.setenv(f"TRAINSHED_{present.upper()}", "x.pem")
    with pytest.raises(SettingsError, match=f"{present} is set without {missing}; set both"):
        load(None, {})
    monkeypatch.setenv(f"TRAINSHED_{missing.upper()}", "")
    with pytest.raises(SettingsError):
        load(None, {})
    (tmp_path / "c.toml").write_text(f'{missing} = "y.pem"')
    monkeypatch.delenv(f"TRAINSHED_{missing.upper()}")
    assert load(tmp_path / "c.toml", {}).tls_cert


@pytest.mark.parametrize(
    ("ports", "names"),
    [
        ({"grpc_port": 8080}, "port and grpc_port"),
        ({"grpc_port": 8081}, "the port of buckets (port + 1) and grpc_port"),
        ({"grpc_port": 8083}, "grpc_port and grpc_tls_port (port + 3)"),
        ({"grpc_tls_port": 8082}, "grpc_port (port + 2) and grpc_tls_port"),
        ({"grpc_tls_port": 8084}, "grpc_tls_port and the TLS port of buckets (port + 4)"),
        ({"port": 0, "grpc_port": 9000, "grpc_tls_port": 9000}, "grpc_port and grpc_tls_port"),
    ],
)
def test_settings_with_equal_port_numbers_are_rejected(ports: dict[str, int], names: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"{names} are both ")):
        load(None, {"port": 8080, **ports})


def test_certificate_paths_are_relative_to_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = load(None, {"tls_cert": Path("a.pem"), "tls_key": Path("~/b.pem")})
    assert settings.tls_cert == str(tmp_path / "a.pem")
    assert settings.tls_key == str(tmp_path / "b.pem")


def test_data_directory_that_other_users_can_read_is_made_private_at_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of programs belong to the service's user, and may be set-user-ID files."""
    for mode, text in ((0o755, "mode 755"), (0o701, "mode 701"), (0o700, "")):
        tmp_path.chmod(mode)
        close_directory(tmp_path)
        assert tmp_path.stat().st_mode & 0o777 == 0o700
        printed = capsys.readouterr().err
        assert text in printed and bool(printed) == bool(text)


def test_shared_directory_is_rejected_as_data_directory(tmp_path: Path) -> None:
    """`trainshed up --data /tmp` would block access of all other users to their files."""
    tmp_path.chmod(0o1777)
    with pytest.raises(click.ClickException, match=r"shared by all users.*--data .*/trainshed"):
        close_directory(tmp_path)
    assert tmp_path.stat().st_mode & 0o7777 == 0o1777
