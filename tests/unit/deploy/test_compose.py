"""The compose file: valid once its variables are filled in, made of settings that exist, and with everything that it mounts."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from turngate.runtime.settings import NO_SETTINGS, Settings, environment_names

DEPLOY = Path(__file__).parents[3] / "deploy"
TEXT = (DEPLOY / "compose.yaml").read_text()
REFERENCE = re.compile(r"\$\{([A-Z_]+)(?::([-?])([^}]*))?\}")
OURS = {"migrate", "api", "worker"}
OTHER_VARIABLES = {
    "POSTGRES_PASSWORD",
    "GRAFANA_PASSWORD",
    "EXTRAS",
    "FORWARDED_ALLOW_IPS",
    "VAULT_ADDR",
    "VAULT_TOKEN",
}
SETTINGS = {name for each in Settings.model_fields for name in environment_names(each)}
CHOSEN = {"POSTGRES_PASSWORD": "secret", "TURNGATE_APP": "my_app:app", "TURNGATE_APP_DIR": "/srv/app"}


def filled_in(variables: dict[str, str]) -> str:
    """Return the file as Compose reads it. Raises KeyError for a variable that must be set and is not."""

    def value(reference: re.Match[str]) -> str:
        name, how, default = reference.groups()
        return variables.get(name) or ("" if default is None else default if how == "-" else variables[name])

    return REFERENCE.sub(value, TEXT)


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(filled_in(CHOSEN))["services"]
    return services


@pytest.mark.exhaustive
def test_compose_accepts_the_file() -> None:
    """By the parser of the Compose specification, references between services included."""
    from compose_spec.compose_spec import PyOptions  # noqa: PLC0415 - slow, and not needed to collect the tests

    parsed = PyOptions(apply_merge=True).from_yaml(filled_in(CHOSEN))
    parsed.validate()
    assert set(parsed.service_names()) >= {*OURS, "postgres", "temporal", "prometheus", "tempo", "grafana"}
    with pytest.raises(KeyError, match="POSTGRES_PASSWORD"):
        filled_in({})


def test_each_variable_exists(services: dict[str, Any]) -> None:
    """Those that our processes get are settings or OpenTelemetry's own; those that a user sets are known, too."""
    for name in OURS:
        ours = {each for each in services[name]["environment"] if not each.startswith("OTEL_")}
        assert ours - OTHER_VARIABLES <= SETTINGS
    wanted = {name for name, _how, _default in REFERENCE.findall(TEXT)}
    apps = {f"TURNGATE_{each}" for each in NO_SETTINGS}
    assert {name for name in wanted - OTHER_VARIABLES - apps if not name.startswith("OTEL_")} <= SETTINGS
    named = set(re.findall(r"\bTURNGATE_[A-Z_]+|\bTEMPORAL_[A-Z_]+", TEXT))
    assert named - apps <= SETTINGS


def test_images_have_versions_and_ports_stay_on_this_machine(services: dict[str, Any]) -> None:
    """A moved tag changes nothing here, and no one else's machine reaches a port."""
    assert all(re.search(r":v?\d+\.\d+", service["image"]) for service in services.values())
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_every_container_is_closed(services: dict[str, Any]) -> None:
    """Read-only root, no capabilities, no new privileges; ours have an init process that reaps killed commands."""
    for service in services.values():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
        assert service["security_opt"] == ["no-new-privileges:true"]
    assert all(services[name]["init"] for name in OURS)


def test_a_service_gets_only_its_secrets(services: dict[str, Any]) -> None:
    """The model's key is the worker's, Temporal's the API's and the worker's; what watches has neither."""
    secret = re.compile("KEY|TOKEN|HEADERS|PASSWORD|DATABASE_URL")
    content = {"TURNGATE_DATABASE_URL", "TURNGATE_KEY", "TURNGATE_FORMER_KEY", "TURNGATE_KEY_SERVICE", "VAULT_TOKEN"}
    connected = {*content, "TEMPORAL_API_KEY", "OTEL_EXPORTER_OTLP_HEADERS"}
    expected = {
        "migrate": content,
        "api": connected,
        "worker": {*connected, "TURNGATE_OPENAI_API_KEY"},
        "postgres": {"POSTGRES_PASSWORD"},
        "grafana": {"GF_SECURITY_ADMIN_PASSWORD"},
    }
    for name, service in services.items():
        has = {each for each in service.get("environment", ()) if secret.search(each)}
        assert has == expected.get(name, set()), name


def test_what_is_mounted_from_here_is_here(services: dict[str, Any]) -> None:
    """Docker would make an empty directory of a file that is missing."""
    mounted = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", ())
        if volume.startswith(".")
    ]
    assert len(mounted) >= 6
    assert [each for each in mounted if not (DEPLOY / each).is_file()] == []


def test_what_watches_is_optional_and_looks_at_what_runs(services: dict[str, Any]) -> None:
    """Prometheus asks every process on its port, Grafana asks both, and traces go where Tempo listens."""
    telemetry = {name for name, service in services.items() if service.get("profiles") == ["telemetry"]}
    assert telemetry == {"prometheus", "tempo", "grafana"}
    prometheus = yaml.safe_load((DEPLOY / "telemetry" / "prometheus.yaml").read_text())
    for scrape in prometheus["scrape_configs"]:
        for target in scrape["dns_sd_configs"]:
            for name in target["names"]:
                assert services[name]["environment"]["TURNGATE_METRICS_PORT"] == target["port"]
    mounts = {volume.split(":")[1] for volume in services["prometheus"]["volumes"]}
    assert set(prometheus["rule_files"]) <= mounts
    sources = yaml.safe_load((DEPLOY / "telemetry" / "datasources.yaml").read_text())["datasources"]
    assert {re.split(r"[/:]+", each["url"])[1] for each in sources} == {"prometheus", "tempo"}
    tempo = yaml.safe_load((DEPLOY / "telemetry" / "tempo.yaml").read_text())
    endpoint = tempo["distributor"]["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT=http://tempo:{endpoint.rpartition(':')[2]}" in TEXT
    assert f":{tempo['server']['http_listen_port']}" in next(each["url"] for each in sources if each["type"] == "tempo")


def test_the_dashboard_reads_where_grafana_finds_it(services: dict[str, Any]) -> None:
    """The provisioned directory is the one that the dashboard is mounted into, and the file is one."""
    provider = yaml.safe_load((DEPLOY / "telemetry" / "dashboards.yaml").read_text())["providers"][0]
    mounts = dict(volume.split(":")[:2][::-1] for volume in services["grafana"]["volumes"])
    source = mounts[f"{provider['options']['path']}/turngate.json"]
    assert json.loads((DEPLOY / source).read_text())["uid"] == "turngate"
