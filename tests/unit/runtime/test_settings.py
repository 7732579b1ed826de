"""Settings: where values come from, and what a wrong one says."""

import re
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from turngate.domain.errors import ConfigurationError
from turngate.runtime.settings import Settings, environment_names, load_settings, unknown_variables


def test_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With nothing set, everything is local: loopback, a SQLite file outside the project, an embedded server."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = tmp_path / "my shop"
    project.mkdir()
    monkeypatch.chdir(project)
    settings = load_settings()
    assert re.fullmatch(rf"{tmp_path}/state/turngate/data/my-shop-[0-9a-f]{{12}}", str(settings.data_dir))
    assert settings.resolved_database_url == f"sqlite:///{settings.data_dir}/turngate.db"
    assert (settings.api_host, settings.api_port, settings.resolved_api_url) == (
        "127.0.0.1",
        8321,
        "http://127.0.0.1:8321",
    )
    assert settings.temporal_address is None
    assert settings.temporal_port is None
    assert settings.temporal_namespace == "default"
    assert settings.task_queue == "turngate"
    assert settings.heartbeat_timeout_seconds == 10
    assert (settings.tool_calls_at_once, settings.model_requests_at_once) == (100, None)


def test_a_project_has_one_data_directory_by_whatever_path_it_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A symlink to the project leads to the same data; another project of the same name has its own."""
    for project in (tmp_path / "a" / "shop", tmp_path / "b" / "shop"):
        project.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "shop")
    places = []
    for place in ("a/shop", "link", "b/shop"):
        monkeypatch.chdir(tmp_path / place)
        places.append(load_settings().data_dir)
    assert places[0] == places[1] != places[2]


def test_i13_data_inside_the_project_is_not_used_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A store that someone put into the project counts for nothing, unless it is named."""
    monkeypatch.chdir(tmp_path)
    planted = tmp_path / ".turngate"
    planted.mkdir()
    (planted / "token").write_text("tg_planted")
    assert not load_settings().data_dir.is_relative_to(tmp_path / ".turngate")
    assert load_settings(data_dir=".turngate").data_dir == planted


def test_overrides_before_environment_before_defaults(monkeypatch: pytest.MonkeyPatch):
    """A command-line option overrides the environment, even where the variable has no prefix; None is no option."""
    monkeypatch.setenv("TURNGATE_API_PORT", "9000")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "env.example:7233")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://env.example/v1")
    from_environment = load_settings(api_port=None, temporal_address=None)
    assert from_environment.api_port == 9000
    assert from_environment.temporal_address == "env.example:7233"
    assert from_environment.openai_base_url == "http://env.example/v1"
    overridden = load_settings(api_port=1, temporal_address="option:1", openai_base_url="https://option/v1/")
    assert overridden.api_port == 1
    assert overridden.temporal_address == "option:1"
    assert overridden.openai_base_url == "https://option/v1"


def test_turngates_own_name_overrides_the_common_one(monkeypatch: pytest.MonkeyPatch):
    """TURNGATE_OPENAI_API_KEY wins over OPENAI_API_KEY; an empty one counts as not set."""
    monkeypatch.setenv("OPENAI_API_KEY", "common")
    monkeypatch.setenv("TURNGATE_OPENAI_API_KEY", "")
    assert load_settings().openai_api_key.get_secret_value() == "common"
    monkeypatch.setenv("TURNGATE_OPENAI_API_KEY", "ours")
    assert load_settings().openai_api_key.get_secret_value() == "ours"


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        ("postgresql://u:p@db:5432/x?sslmode=require", "postgresql+psycopg://u:p@db:5432/x?sslmode=require"),
        ("postgres://u@db/x", "postgresql+psycopg://u@db/x"),
        ("postgresql+psycopg://u@db/x", "postgresql+psycopg://u@db/x"),
        ("sqlite:////var/lib/x.db", "sqlite:////var/lib/x.db"),
        ("sqlite:///x.db", "sqlite:///x.db"),
    ],
)
def test_database_url_gets_the_driver(url: str, resolved: str):
    """A plain URL gets the installed driver."""
    assert load_settings(database_url=url).resolved_database_url == resolved


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("TURNGATE_API_PORT", "eighty", "valid integer"),
        ("TURNGATE_API_PORT", "70000", "65535"),
        ("TURNGATE_TEMPORAL_PORT", "0", "greater than or equal to 1"),
        ("TURNGATE_HEARTBEAT_TIMEOUT_SECONDS", "0", "greater than or equal to 1"),
        ("TURNGATE_LOG_FORMAT", "xml", "'console' or 'json'"),
        ("TURNGATE_LOG_LEVEL", "loud", "'debug'"),
        ("TURNGATE_API_URL", "example.com", "http://"),
        ("TEMPORAL_ADDRESS", "http://temporal:7233", "HOST:PORT"),
        ("TEMPORAL_TLS", "maybe", "valid boolean"),
        ("OPENAI_BASE_URL", "ftp://x", "http://"),
    ],
)
def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, says: str):
    """The error names the variable that holds the wrong value, the value, and what it must be."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=f"{variable}={re.escape(value)}: .*{re.escape(says)}"):
        load_settings()


def test_all_wrong_values_are_named_at_once(monkeypatch: pytest.MonkeyPatch):
    """Two mistakes need one start to find, not two."""
    monkeypatch.setenv("TURNGATE_API_PORT", "x")
    monkeypatch.setenv("TEMPORAL_TLS", "x")
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    assert "TURNGATE_API_PORT" in caught.value.message
    assert "TEMPORAL_TLS" in caught.value.message


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("mysql://root:hunter2@db/x", "must begin with"),
        ("sqlite://", "must name a file"),
        ("sqlite:///:memory:", "must name a file"),
        ("sqlite:////hunter2/what?/x.db", "write it as %3F"),
        ("postgresql://root:hunter2@hunter2@db/x", "in the password, write @ as %40"),
        ("postgresql://root:x@db:hunter2/x", "has no port"),
        ("postgresql://root:x@db:5432,hunter2:5433/x", "has no port"),
    ],
)
def test_a_wrong_database_url_is_not_repeated(url, problem):
    """The variable is named with what is wrong; a password in a URL that is refused does not reach the message."""
    with pytest.raises(ConfigurationError, match=f"TURNGATE_DATABASE_URL: .*{problem}") as caught:
        load_settings(database_url=url)
    assert "hunter2" not in caught.value.message


@pytest.mark.parametrize(
    "url", ["postgresql://u:p%40x#y?z/w@db:5432/x", "postgresql:///x?host=/run/pg", "postgres://[::1]:5432/x"]
)
def test_a_database_url_that_can_be_read_is_taken(url):
    """With any password that is escaped, a socket, or an address of IPv6."""
    assert load_settings(database_url=url).database_url is not None


def test_secrets_do_not_print():
    """Neither keys nor the database's password are in the repr, which anything may log."""
    settings = load_settings(
        openai_api_key="hunter2", temporal_api_key="hunter2", database_url="postgresql://u:hunter2@db/x"
    )
    assert "hunter2" not in repr(settings) + str(settings) + settings.model_dump_json()


def test_an_unknown_setting_is_refused():
    """A misspelt override in the project's own code fails at once."""
    with pytest.raises(ConfigurationError, match="no setting 'api_prot'"):
        load_settings(api_prot=1)


def test_a_certificate_needs_its_key(tmp_path: Path):
    """Half a TLS identity, and certificates with TLS switched off, are refused."""
    with pytest.raises(ConfigurationError, match="both TEMPORAL_TLS_CERT and TEMPORAL_TLS_KEY"):
        load_settings(temporal_tls_cert=tmp_path / "cert.pem")
    with pytest.raises(ConfigurationError, match="TEMPORAL_TLS is false"):
        load_settings(temporal_tls=False, temporal_tls_server_ca=tmp_path / "ca.pem")


def test_frozen():
    """Settings do not change after the start."""
    with pytest.raises(ValidationError, match="frozen"):
        load_settings().api_port = 1


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),  # noqa: S104  # never bound here
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
    ],
)
def test_api_url_of_a_wildcard_host(host: str, url: str):
    """An address that means "every interface" is not one to connect to."""
    assert load_settings(api_host=host, api_port=80).resolved_api_url == url


@pytest.mark.parametrize("field", Settings.model_fields)
def test_every_field_is_read_from_its_named_variables(monkeypatch: pytest.MonkeyPatch, field: str):
    """The variable that an error names is the one that pydantic reads: the value is used there, or refused there."""
    for variable in environment_names(field):
        with monkeypatch.context() as patched:
            patched.setenv(variable, "not a value")
            try:
                settings = load_settings()
            except ConfigurationError as error:
                arrived = error.message
                expected = variable
            else:
                value = getattr(settings, field)
                arrived = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
                expected = "not a value"
        assert expected in arrived


def test_streaming_can_be_switched_off(monkeypatch: pytest.MonkeyPatch):
    """On unless ``TURNGATE_STREAMING=off`` is set."""
    assert load_settings().streaming
    monkeypatch.setenv("TURNGATE_STREAMING", "off")
    assert not load_settings().streaming


@pytest.mark.parametrize(
    ("url", "files"),
    [
        (None, ("/state/turngate.db",)),
        ("sqlite:////var/lib/app.db", ("/var/lib/app.db",)),
        ("sqlite:////var/lib/app.db?timeout=5", ("/var/lib/app.db",)),
        ("postgresql://u:p@db/turngate", ()),
    ],
)
def test_the_files_of_the_store_are_known(url: str | None, files: tuple[str, ...]) -> None:
    """An SQLite store is a file, by default in the data directory; a server's has none here."""
    assert load_settings(data_dir="/state", database_url=url).database_files == tuple(map(Path, files))


def test_a_misspelled_variable_is_named_with_the_setting() -> None:
    """Also one of Temporal's own with our prefix, and the file of a secret."""
    wrong = {
        "TURNGATE_MODLE": "MODEL",
        "TURNGATE_DATABSE_URL_FILE": "DATABASE_URL_FILE",
        "TURNGATE_API_PROT": "API_PORT",
    }
    for name, meant in wrong.items():
        assert unknown_variables({name: ""}) == [f"{name} is no setting. Did you mean TURNGATE_{meant}?"]
    [warning] = unknown_variables({"TURNGATE_TEMPORAL_ADDRESS": "host:1"})
    assert warning == "TURNGATE_TEMPORAL_ADDRESS is no setting. Did you mean TEMPORAL_ADDRESS?"
    [warning] = unknown_variables({"TURNGATE_FROBNICATION": "1"})
    assert warning == "TURNGATE_FROBNICATION is no setting. It changes nothing, unless your own app reads it."


def test_no_variable_that_is_right_is_called_unknown() -> None:
    """Settings in any case, their files, what clients, tools, providers, the compose file and files of channels name."""
    settings = {name for field in Settings.model_fields for name in environment_names(field)}
    other = {"TOKEN", "URL", "COMMAND", "APP", "APP_DIR", "DATABASE_URL_FILE", "OLLAMA_BASE_URL", "SLACK_WEBHOOK"}
    ours = {*settings, "turngate_model", *(f"TURNGATE_{each}" for each in other)}
    assert unknown_variables(dict.fromkeys([*ours, "PATH", "MODLE"], "x"), "url = $TURNGATE_SLACK_WEBHOOK") == []
