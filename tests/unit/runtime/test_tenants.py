"""The file of the tenants, and the settings that follow from it for each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from turngate.cli.parts.worker import with_its_share
from turngate.domain.errors import ConfigurationError
from turngate.runtime.settings import Settings, load_settings, load_stack_settings
from turngate.runtime.tenants import OF_EACH_TENANT, load_tenants

TWO = """
[acme]
hosts = ["acme.example.com", "ACME.example.org"]
[bolt-co]
hosts = ["bolt.example.com"]
schema = "bolt"
namespace = "of-bolt"
settings = { key_file = "bolt.key", approval_pace = 3 }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tenants.toml"
    path.write_text(TWO)
    (tmp_path / "bolt.key").write_text("the key of bolt\n")
    monkeypatch.setenv("TURNGATE_TENANTS", str(path))
    monkeypatch.setenv("TURNGATE_DATA_DIR", str(tmp_path / "state"))
    return path


def test_names_are_filled_in(file: Path) -> None:
    """A tenant has a schema and a role by its name, and a namespace by the deployment's and its name, unless it names them."""
    acme, bolt = load_tenants(file, "prod")
    assert (acme.schema_name, acme.role, acme.namespace) == ("tenant_acme", "tenant_acme", "prod-acme")
    assert acme.hosts == ["acme.example.com", "acme.example.org"]
    assert (bolt.name, bolt.schema_name, bolt.role, bolt.namespace) == ("bolt-co", "bolt", "bolt", "of-bolt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds 0 tables"),
        ("acme = 1", "outside of a table"),
        ("[acme]", "hosts: Field required"),
        ("[acme]\nhosts = []", "hosts"),
        ('[acme]\nhosts = ["a.com"]\nhost = "b.com"', "host: there is no such key"),
        ('[acme]\nname = "b"\nhosts = ["a.com"]', "name: there is no such key"),
        ('[Acme]\nhosts = ["a.com"]', "name: up to 30"),
        ('["acme-"]\nhosts = ["a.com"]', "name: up to 30"),
        ('["../x"]\nhosts = ["a.com"]', "name: up to 30"),
        ('[acme]\nhosts = ["https://a.com"]', "hosts.0: a host name such as"),
        ('[acme]\nhosts = ["a.com:80"]', "hosts.0: a host name such as"),
        ('[acme]\nhosts = ["*.a.com"]', "hosts.0: a host name such as"),
        ('[acme]\nhosts = ["a.com", "A.com"]', "[acme] twice have the host a.com"),
        ('[acme]\nhosts = ["a.com"]\n[b]\nhosts = ["A.COM"]', "[acme] and [b] have the host a.com"),
        ('[acme]\nhosts = ["a.com"]\nschema = "public"', "schema: up to 50"),
        ('[acme]\nhosts = ["a.com"]\nschema = "pg_temp"', "schema: up to 50"),
        ('[acme]\nhosts = ["a.com"]\nschema = "a; DROP"', "schema: up to 50"),
        ('[a-x]\nhosts = ["a.com"]\n[b]\nhosts = ["b.com"]\nschema = "tenant_a_x"', "[a-x] and [b] have the schema"),
        ('[a]\nhosts = ["a.com"]\n[b]\nhosts = ["b.com"]\nrole = "tenant_a"', "[a] and [b] have the role"),
        ('[a]\nhosts = ["a.com"]\n[b]\nhosts = ["b.com"]\nnamespace = "n-a"', "[a] and [b] have the namespace"),
        ('[a]\nhosts = ["a.com"]\nsettings = { log_level = "debug" }', "log_level: no setting of one tenant"),
        ('[a]\nhosts = ["a.com"]\nsettings = { key = "s3cr3t" }', "give its path as key_file"),
        ('[a]\nhosts = ["a.com"]\nsettings = { public_url_file = "x" }', "public_url_file: no setting of one tenant"),
        ('[a]\nhosts = ["a.com"]\nsettings = { approval_pace = [1] }', "approval_pace: give a text"),
        ("[acme", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_by_tenant_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        load_tenants(path, "n")
    assert message in caught.value.message
    assert "s3cr3t" not in caught.value.message


def test_each_tenant_has_a_place_of_its_own(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data directory, store, namespace and addresses differ; what the process has alone is inherited."""
    monkeypatch.setenv("TURNGATE_PUBLIC_URL", "https://turngate.example.com")
    acme, bolt = load_settings(api_port=9000).served()
    assert acme.data_dir == file.parent / "state" / "tenants" / "acme"
    assert acme.resolved_database_url == f"sqlite:///{acme.data_dir}/turngate.db"
    assert (acme.temporal_namespace, bolt.temporal_namespace) == ("default-acme", "of-bolt")
    assert acme.resolved_public_url == "https://acme.example.com"
    assert acme.resolved_api_url == "http://acme.example.com:9000"
    assert acme.stack_dir == bolt.stack_dir == file.parent / "state"
    assert (acme.key, bolt.approval_pace) == (None, 3)
    assert bolt.key is not None
    assert bolt.key.get_secret_value() == "the key of bolt"


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_a_servers_database_is_bound_to_schema_and_role(
    file: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("TURNGATE_DATABASE_URL", f"{scheme}://me:p%40ss@db/turngate?sslmode=require")
    _acme, bolt = load_settings().served()
    assert bolt.resolved_database_url == (
        "postgresql+psycopg://me:p%40ss@db/turngate?role=bolt&schema=bolt&sslmode=require"
    )


def test_a_file_of_the_settings_is_divided_by_directories(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNGATE_DATABASE_URL", f"sqlite:///{file.parent}/a.db")
    acme, _bolt = load_settings().served()
    assert acme.database_files == (file.parent / "tenants" / "acme" / "a.db",)


@pytest.mark.parametrize("load", [load_settings, load_stack_settings])
def test_a_command_is_about_the_named_tenant(file: Path, monkeypatch: pytest.MonkeyPatch, load: type[Settings]) -> None:
    """With a name the settings are that tenant's; without one there is no store to open, and the error says what to do."""
    monkeypatch.setenv("TURNGATE_TENANT", "acme")
    assert load().data_dir == file.parent / "state" / "tenants" / "acme"
    monkeypatch.delenv("TURNGATE_TENANT")
    with pytest.raises(ConfigurationError, match=r"put `--tenant NAME` before the command.*acme, bolt-co"):
        _ = load().resolved_database_url
    monkeypatch.setenv("TURNGATE_TENANT", "zeta")
    with pytest.raises(ConfigurationError, match="there is no tenant 'zeta'; there are: acme, bolt-co"):
        load()
    monkeypatch.delenv("TURNGATE_TENANTS")
    with pytest.raises(ConfigurationError, match="this deployment has no tenants"):
        load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TURNGATE_KEY", "k"),
        ("TURNGATE_WORKSPACES", "/srv"),
        ("TURNGATE_NOTIFICATIONS", "n.toml"),
        ("TURNGATE_OIDC_DEFAULT_ROLE", "operator"),
    ],
)
def test_what_no_two_tenants_may_share_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """One log-in, key, workspace or channel for all of them would lead from one tenant to another."""
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=rf"{name} is set for all tenants.*\[acme.settings\]"):
        load_settings().served()


OF_THE_PROCESS = {
    "give_way_at",
    *("api_host", "api_port", "drain_seconds", "stop_grace_seconds", "metrics_host", "metrics_port", "health_file"),
    *(
        "build_id",
        "deployment_name",
        "task_queue",
        "heartbeat_timeout_seconds",
        "fairness",
        "priority",
        "search_attributes",
    ),
    *("log_format", "log_level", "traces", "trace_names", "audit_every"),
    *(
        "model",
        "models_file",
        "openai_api_key",
        "openai_base_url",
        "allow_unconfined",
        "tool_paths",
        "tool_networks",
        "tool_user",
    ),
    *("temporal_address", "temporal_api_key", "temporal_port", "temporal_ui_url"),
    *("temporal_tls", "temporal_tls_cert", "temporal_tls_key", "temporal_tls_server_ca"),
}
OF_THE_BINDING = {"data_dir", "tenant", "tenants", "temporal_namespace"}
"""What the tenants' file divides by itself."""


def test_every_setting_is_a_tenants_or_the_processes() -> None:
    """A new setting must be judged: may tenants share it, may one differ, or must each have its own?"""
    assert set(Settings.model_fields) == OF_EACH_TENANT | OF_THE_PROCESS | OF_THE_BINDING
    assert not OF_EACH_TENANT & (OF_THE_PROCESS | OF_THE_BINDING)


@pytest.mark.usefixtures("file")
def test_tenants_divide_the_slots_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a backlog fills its own tenant's slots. A tenant with a number of its own has that one; each has one at least."""
    monkeypatch.setenv("TURNGATE_TOOL_CALLS_AT_ONCE", "40")
    process = load_settings()
    acme, bolt = process.served()
    assert [with_its_share(process, each, 2).tool_calls_at_once for each in (acme, bolt)] == [20, 20]
    own = bolt.model_copy(update={"tool_calls_at_once": 7})
    assert with_its_share(process, own, 2).tool_calls_at_once == 7
    assert with_its_share(process, acme, 100).tool_calls_at_once == 1


def test_without_a_file_there_are_no_tenants(tmp_path: Path) -> None:
    """The settings serve themselves, as they are."""
    settings = load_settings(data_dir=tmp_path)
    assert settings.served() == (settings,)
    assert (settings.all_tenants(), settings.stack_dir) == ((), tmp_path)
