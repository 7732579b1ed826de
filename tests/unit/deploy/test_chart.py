"""The Helm chart, rendered by Helm: valid for Kubernetes, closed where it can be, and as the how-to says."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.project.chart import (
    CHART,
    NAMESPACE,
    PEERS,
    SMALLEST,
    Peer,
    Resource,
    environment,
    faults,
    is_open,
    is_secret,
    of_kind,
    pods,
    render,
)

from turngate.runtime.settings import Settings, environment_names

pytestmark = pytest.mark.exhaustive  # Helm and the schemas of Kubernetes are large: `make test-all` installs them

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "howto" / "run-in-production.md").read_text()
VARIABLE = re.compile(r"\b(?:TURNGATE|TEMPORAL|OPENAI)_[A-Z][A-Z_]*[A-Z]\b")
FULL: dict[str, Any] = yaml.safe_load((Path(__file__).with_name("full_values.yaml")).read_text())
OTHER_KINDS = {"ScaledObject", "TriggerAuthentication"}
"""KEDA's, for which Kubernetes has no schema."""
EVERYWHERE = {"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443}]}
OLDEST = "1.27"
STORE, TEMPORAL = "10.1.2.3", "10.1.2.4"


@pytest.fixture(scope="module")
def small() -> list[Resource]:
    return render()


@pytest.fixture(scope="module")
def full() -> list[Resource]:
    return render(FULL)


def test_helm_and_kubernetes_accept_the_chart(full: list[Resource]) -> None:
    """`helm lint --strict` is silent, and each resource fits the strict schema of the oldest Kubernetes it is for."""
    import kubernetes_validate  # noqa: PLC0415 - slow, and not needed to collect the tests
    from helm_python import chart as helm  # noqa: PLC0415 - the same

    assert f">={OLDEST}.0" in (CHART / "Chart.yaml").read_text()
    report = helm.lint(CHART, strict=True)
    assert [each for each in report["messages"] if each["error"] != "icon is recommended"] == []
    kinds = {each["kind"] for each in full}
    assert kinds >= {"Deployment", "Job", "Service", "Ingress", "PodDisruptionBudget", "NetworkPolicy", *OTHER_KINDS}
    for each in full:
        if each["kind"] not in OTHER_KINDS:
            kubernetes_validate.validate(each, OLDEST, strict=True)


def test_every_pod_keeps_the_rules(small: list[Resource], full: list[Resource]) -> None:
    """Not root, read-only root, no capabilities, limits, probes, versions of images, no secrets in the environment."""
    assert faults(small) == []
    assert faults(full) == []


def worker(resources: list[Resource]) -> Resource:
    return next(template for name, template in pods(resources) if "worker" in name)


def without(at: Resource, name: str) -> object:
    return at.pop(name)


BROKEN: dict[str, Callable[[list[Resource]], object]] = {
    "may run as root": lambda all_: without(worker(all_)["spec"]["securityContext"], "runAsNonRoot"),
    "has no seccomp profile": lambda all_: without(worker(all_)["spec"]["securityContext"], "seccompProfile"),
    "gets a token of Kubernetes": lambda all_: without(worker(all_)["spec"], "automountServiceAccountToken"),
    "gets variables for": lambda all_: without(worker(all_)["spec"], "enableServiceLinks"),
    "shares namespaces": lambda all_: worker(all_)["spec"].update(hostPID=True),
    "mounts a directory": lambda all_: worker(all_)["spec"]["volumes"].append({"name": "x", "hostPath": {}}),
    "may gain privileges": lambda all_: without(worker(all_)["spec"]["containers"][0], "securityContext"),
    "has no limit of memory": lambda all_: without(worker(all_)["spec"]["containers"][0], "resources"),
    "has no probes": lambda all_: without(worker(all_)["spec"]["containers"][0], "livenessProbe"),
    "image without a version": lambda all_: worker(all_)["spec"]["containers"][0].update(image="a:5000/b"),
    "has a secret in": lambda all_: worker(all_)["spec"]["containers"][0]["env"].append({"name": "A_KEY", "value": ""}),
    "selects not exactly one": lambda all_: of_kind(all_, "Service")[0]["spec"]["selector"].clear(),
    "does not select its own": lambda all_: of_kind(all_, "Deployment")[0]["spec"]["selector"]["matchLabels"].clear(),
    "no network policy closes": lambda all_: [all_.remove(each) for each in of_kind(all_, "NetworkPolicy")],
    "is there twice": lambda all_: all_.append(all_[0]),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_the_rules_find_what_breaks_them(small: list[Resource], fault: str) -> None:
    """Each rule above can fail."""
    broken = copy.deepcopy(small)
    BROKEN[fault](broken)
    assert any(fault in sentence for sentence in faults(broken))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"app": ""}, "set app to your app"),
        ({"temporal": {"address": ""}}, "set temporal.address"),
        ({"temporal": {"address": "http://temporal:7233"}}, "does not match pattern"),
        ({"image": {"tag": "latest"}}, "'not' failed"),
        ({"settings": {"TURNGATE_OPENAI_API_KEY": "sk"}}, "invalid propertyName 'TURNGATE_OPENAI_API_KEY'"),
        ({"settings": {"TURNGATE_DATABASE_URL": "postgresql://"}}, "invalid propertyName"),
        ({"settings": {"TURNGATE_TOOL_USER": "agent"}}, "invalid propertyName"),
        ({"settings": {"TURNGATE_APPROVAL_PACE": 1_000_000}}, "got number, want boolean or string"),
        ({"secretEnv": {"TURNGATE_X_KEY": {"existingSecret": "a", "key": "b", "processes": ["api"]}}}, "propertyName"),
        ({"replicas": 3}, "additional properties 'replicas' not allowed"),
        ({"files": {"TURNGATE_AUDIT_KEY_FILE": {"secret": "a", "key": "k", "processes": ["api"]}}}, "audit.existingClaim"),
        ({"api": {"ingress": {"enabled": True}, "trustedProxies": ""}}, "set api.trustedProxies"),
        ({"api": {"ingress": {"enabled": True, "host": "a.example"}, "trustedProxies": "*"}}, "must be TLS"),
        (
            {"toolServices": [{**FULL["toolServices"][0], "egress": [EVERYWHERE]}]},
            "includes the store and Temporal",
        ),
        ({"toolServices": [{**FULL["toolServices"][0], "egress": [{"ports": [{"port": 443}]}]}]}, "missing property 'to'"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_in_words(values: dict[str, Any], says: str) -> None:
    """Before anything is installed, and by name."""
    from helm_python.errors import HelmError  # noqa: PLC0415 - the same

    with pytest.raises(HelmError) as refused:
        render({**SMALLEST, **values})
    assert says in str(refused.value)


# Settings and variables.


def known_variables() -> set[str]:
    names = {name for each in Settings.model_fields for name in environment_names(each)}
    return names | {f"{name}_FILE" for name in names if is_secret(name)}


def schema_of_settings() -> dict[str, Any]:
    return json.loads((CHART / "values.schema.json").read_text())["$defs"]["settings"]["propertyNames"]


def chart_only() -> set[str]:
    """Variables that values.schema.json refuses in `settings`, because the chart sets them, or never does."""
    return set(schema_of_settings()["allOf"][1]["not"]["enum"])


def test_each_variable_of_the_chart_is_a_setting(full: list[Resource]) -> None:
    """None is misspelled, and no pod gets a secret's variable itself."""
    others = {"POD_NAME", "FORWARDED_ALLOW_IPS", *FULL["secretEnv"]}
    used = {variable for name, _template in pods(full) if "tool" not in name for variable in environment(full, name)}
    assert used - others <= known_variables()
    assert chart_only() <= known_variables()
    assert chart_only() - used <= {"TURNGATE_TOOL_USER"}, "these are refused in settings, and nothing sets them"


def test_no_secret_can_be_a_plain_setting() -> None:
    """The schema refuses every secret by its name, so that a new one is, too."""
    refused = re.compile(schema_of_settings()["allOf"][0]["not"]["pattern"])
    secrets = [name for each, declared in Settings.model_fields.items() if "SecretStr" in str(declared.annotation)
               for name in environment_names(each)]  # fmt: skip
    assert secrets
    assert [name for name in secrets if not refused.search(name) or not is_secret(name)] == []


def test_the_chart_has_what_the_page_says(full: list[Resource]) -> None:
    """Every variable of docs/howto/run-in-production.md is set by the chart, can be set, or is said not to be."""
    on_page = set(VARIABLE.findall(PAGE)) - {"TURNGATE_TEMPORAL", "TEMPORAL_TLS"}
    readme = (CHART / "README.md").read_text()
    never = set(VARIABLE.findall(readme.partition("## What can't be set")[2].partition("\n## ")[0]))
    assert on_page <= known_variables()
    assert never <= chart_only()
    used = {variable for name, _template in pods(full) if "tool" not in name for variable in environment(full, name)}
    refused = re.compile(schema_of_settings()["allOf"][0]["not"]["pattern"])
    for name in on_page:
        in_files = f"{name}_FILE" in known_variables() or name.endswith(("_FILE", "TLS_KEY"))
        can_be_set = name not in chart_only() and (not refused.search(name) or in_files)
        assert name in used or can_be_set or name in never, (
            f"{name}: the page names it, and the chart has no place for it"
        )


CLAIMS: dict[str, Callable[[list[Resource]], object]] = {
    "once per release, before the new processes start": lambda all_: (
        of_kind(all_, "Job")[0]["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    ),
    "behind a proxy that ends TLS": lambda all_: "tls" in of_kind(all_, "Ingress")[0]["spec"],
    "`GET /livez` says that the process runs": lambda all_: probe(all_, "api", "liveness")["httpGet"]["path"] == "/livez",
    "`GET /readyz` says that it reaches Temporal and that the store takes writes": lambda all_: (
        probe(all_, "api", "readiness")["httpGet"]["path"] == "/readyz"
    ),
    "import os, sys, time; sys.exit(time.time() - os.stat('FILE').st_mtime > 15)": lambda all_: probe(
        all_, "worker", "liveness"
    )["exec"]["command"][-1].replace("/tmp/worker", "FILE"),  # noqa: S108
    "it reaps killed": lambda all_: worker(all_)["spec"]["shareProcessNamespace"],
    "The API only checks them, so give it the same mount": lambda all_: {
        mount["mountPath"]: mount.get("readOnly", False)
        for _name, template in pods(all_)
        for mount in template["spec"]["containers"][0]["volumeMounts"]
        if mount["name"] == "workspaces"
    },
    "wait for both and five seconds more": lambda all_: all(
        template["spec"]["terminationGracePeriodSeconds"] >= seconds(all_, name) + 5
        for name, template in pods(all_)
        if "terminationGracePeriodSeconds" in template["spec"]
    ),
    "With two of each": lambda _all: all(
        each["spec"]["replicas"] == 2 for each in of_kind(render(), "Deployment")
    ),
    "each after the one before is ready": lambda all_: all(
        each["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
        for each in of_kind(all_, "Deployment")
        if "tool" not in each["metadata"]["name"]
    ),
}  # fmt: skip
"""What the page says, in its words → whether the chart does it."""


def probe(resources: list[Resource], process: str, kind: str) -> Resource:
    template = next(template for name, template in pods(resources) if f"-{process}" in name)
    return template["spec"]["containers"][0][f"{kind}Probe"]


def seconds(resources: list[Resource], name: str) -> int:
    variables = environment(resources, name)
    return sum(int(variables.get(f"TURNGATE_{each}_SECONDS", 0)) for each in ("DRAIN", "STOP_GRACE"))


@pytest.mark.parametrize("claim", CLAIMS)
def test_the_chart_does_what_the_page_says(full: list[Resource], claim: str) -> None:
    """A sentence that leaves the page, and a chart that stops doing it, both fail here."""
    assert claim in " ".join(PAGE.split())
    assert CLAIMS[claim](full)


# What the network policies let through.


def template_of(resources: list[Resource], part: str) -> Resource:
    return next(template for name, template in pods(resources) if part in name)


REACHES = {
    # pod: store, Temporal, a private address, the internet on 443 and on 80, the tool's service, DNS
    "-api": (True, True, False, True, False, False, True),
    "-worker": (True, True, False, True, False, True, True),
    "-migrate": (True, False, False, False, False, False, True),
    "-tool-search": (False, False, False, True, False, False, True),
}


@pytest.mark.parametrize("part", REACHES)
def test_a_pod_reaches_what_it_needs_and_no_more(full: list[Resource], part: str) -> None:
    """A service for tools reaches neither the store nor Temporal; the migration has no business with Temporal."""
    pod = template_of(full, part)
    tool = template_of(full, "-tool-search")["metadata"]["labels"]
    peers = [
        (Peer(address=STORE), 5432, "TCP"),
        (Peer(address=TEMPORAL), 7233, "TCP"),
        (Peer(address="10.9.9.9"), 443, "TCP"),
        (Peer(address="93.184.216.34"), 443, "TCP"),
        (Peer(address="93.184.216.34"), 80, "TCP"),
        (Peer(labels=tool), 8080, "TCP"),
        (Peer(labels={"k8s-app": "kube-dns"}, namespace="kube-system"), 53, "UDP"),
    ]
    assert tuple(is_open(full, pod, "Egress", *peer) for peer in peers) == REACHES[part]


def test_only_the_api_and_metrics_are_reached(full: list[Resource]) -> None:
    """From an ingress controller, a worker, and Prometheus; nothing else opens a port."""
    worker_pod = Peer(labels=template_of(full, "-worker")["metadata"]["labels"])
    ingress, prometheus = Peer(namespace="ingress-nginx"), Peer(namespace="monitoring")
    outside = Peer(address="93.184.216.34")
    expected = {
        "-api": {("ingress", 8321), ("prometheus", 9464)},
        "-worker": {("prometheus", 9464)},
        "-migrate": set(),
        "-tool-search": {("worker", 8080)},
    }
    peers = {"ingress": ingress, "prometheus": prometheus, "worker": worker_pod, "outside": outside}
    for part, wanted in expected.items():
        pod = template_of(full, part)
        opened = {
            (name, port)
            for name, peer in peers.items()
            for port in (8080, 8321, 9464, 22)
            if is_open(full, pod, "Ingress", peer, port)
        }
        assert opened == wanted, part


@pytest.mark.parametrize(
    ("place", "empty"),
    [("store.to", {"store": {"to": []}}), ("temporal.to", {"temporal": {"to": []}}), ("apiFrom", {"apiFrom": []})],
)
def test_a_peer_that_is_not_named_is_refused(place: str, empty: dict[str, Any]) -> None:
    """Nothing is open by default: the message says what to set. Without policies, nothing has to be."""
    values = {**SMALLEST, "networkPolicy": {**PEERS, **empty}}
    with pytest.raises(Exception, match=rf"networkPolicy\.{re.escape(place)} is empty.*name .*enabled=false"):
        render(values)
    assert of_kind(render({**values, "networkPolicy": {"enabled": False}}), "NetworkPolicy") == []


def test_the_store_is_reached_on_its_port_only(small: list[Resource]) -> None:
    """Another port of the same address stays closed."""
    pod = template_of(small, "-worker")
    assert is_open(small, pod, "Egress", Peer(address=STORE), 5432)
    assert not is_open(small, pod, "Egress", Peer(address=STORE), 6379)
    assert not is_open(small, pod, "Egress", Peer(address=TEMPORAL), 5432)
    assert NAMESPACE == "approvals"


# Workers by queue.


def test_each_queue_has_its_worker_and_scales_by_its_backlog(full: list[Resource]) -> None:
    """All three lanes of a queue count, by its build; a queue without scaling keeps its number."""
    assert environment(full, "turngate-worker-payments")["TURNGATE_TASK_QUEUE"] == "payments"
    assert environment(full, "turngate-worker-payments")["TURNGATE_TOOL_CALLS_AT_ONCE"] == "2"
    assert environment(full, "turngate-worker-default")["TURNGATE_BUILD_ID"] == "b2"
    scaled = of_kind(full, "ScaledObject")
    assert [each["spec"]["scaleTargetRef"]["name"] for each in scaled] == ["turngate-worker-default"]
    triggers = scaled[0]["spec"]["triggers"]
    assert [each["metadata"]["taskQueue"] for each in triggers] == ["turngate", "turngate.models", "turngate.records"]
    for each in triggers:
        assert all(isinstance(value, str) for value in each["metadata"].values()), "KEDA takes texts only"
        assert (each["metadata"]["workerDeploymentName"], each["metadata"]["workerDeploymentBuildId"]) == ("prod", "b2")
        assert each["authenticationRef"]["name"] == of_kind(full, "TriggerAuthentication")[0]["metadata"]["name"]
    replicas = {each["metadata"]["name"]: each["spec"].get("replicas") for each in of_kind(full, "Deployment")}
    assert (replicas["turngate-worker-default"], replicas["turngate-worker-payments"]) == (None, 1)


def test_without_keda_processor_time_scales() -> None:
    """The fallback is a HorizontalPodAutoscaler on the same Deployment."""
    resources = render({**FULL, "keda": {"enabled": False}})
    targets = [each["spec"]["scaleTargetRef"]["name"] for each in of_kind(resources, "HorizontalPodAutoscaler")]
    assert targets == ["turngate-api", "turngate-worker-default"]
    assert not OTHER_KINDS & {each["kind"] for each in resources}


def test_keys_retention_traces_and_vault_have_a_place() -> None:
    """As the comments of values.yaml give them: the key for all three, retention for the API, Vault's token from a Secret."""
    everyone = ["api", "worker", "migrate"]
    collector = {"to": [{"podSelector": {"matchLabels": {"app": "collector"}}}], "ports": [{"port": 4318}]}
    values = {
        **SMALLEST,
        "settings": {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.telemetry:4318",
            "TURNGATE_FORMER_KEY_SERVICE": "vault:transit/turngate",
            "VAULT_ADDR": "https://vault.internal:8200",
        },
        "secrets": {
            "TURNGATE_DATABASE_URL": {"existingSecret": "d", "key": "url", "processes": everyone},
            "TURNGATE_KEY": {"existingSecret": "k", "key": "key", "processes": everyone},
        },
        "files": {
            "TURNGATE_RETENTION": {"configMap": "r", "key": "retention.toml", "processes": ["api"]},
        },
        "secretEnv": {"VAULT_TOKEN": {"existingSecret": "v", "key": "token", "processes": everyone}},
        "networkPolicy": {**PEERS, "apiEgress": [collector], "workerEgress": [collector]},
    }
    resources = render(values)
    assert faults(resources) == []
    used = {name: environment(resources, name) for name, _template in pods(resources)}
    for variables in used.values():
        assert {"TURNGATE_KEY_FILE", "VAULT_ADDR", "VAULT_TOKEN"} <= variables.keys()
        assert "TURNGATE_KEY" not in variables
    assert [name for name, variables in used.items() if "TURNGATE_RETENTION" in variables] == ["turngate-api"]
    for part in ("-api", "-worker"):
        pod = template_of(resources, part)
        assert is_open(resources, pod, "Egress", Peer(labels={"app": "collector"}), 4318, "TCP")


def test_a_process_gets_only_its_secrets(full: list[Resource]) -> None:
    """The worker has no client secret, the migration only the store's."""
    secrets = {
        name: {each for each in environment(full, name) if each.endswith("_FILE")}
        for name, _pod in pods(full)
        if "tool" not in name
    }
    assert secrets["turngate-migrate"] == {"TURNGATE_DATABASE_URL_FILE"}
    assert secrets["turngate-worker-payments"] == {
        "TURNGATE_DATABASE_URL_FILE",
        "TEMPORAL_API_KEY_FILE",
        "TURNGATE_HEALTH_FILE",
    }
    assert "TURNGATE_OIDC_CLIENT_SECRET_FILE" in secrets["turngate-api"]
