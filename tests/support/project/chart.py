"""The Helm chart as Helm itself renders it, the rules that its pods keep, and what its network policies let through."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "turngate"
PEERS: dict[str, Any] = {
    "store": {"to": [{"ipBlock": {"cidr": "10.1.2.3/32"}}]},
    "temporal": {"to": [{"ipBlock": {"cidr": "10.1.2.4/32"}}]},
    "apiFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}],
}
SMALLEST: dict[str, Any] = {
    "app": "my_app:app",
    "temporal": {"address": "temporal.internal:7233"},
    "networkPolicy": PEERS,
}
NAMESPACE = "approvals"
Resource = dict[str, Any]


def render(values: Mapping[str, Any] = SMALLEST, name: str = "turngate") -> list[Resource]:
    """Return what `helm template` would print. Raises Helm's own errors, those of the values' schema included."""
    from helm_python import chart as helm  # noqa: PLC0415 - takes half a second, which collecting the tests need not

    with helm.Chart.load(CHART) as loaded:
        files = loaded.render(values=dict(values), name=name, namespace=NAMESPACE)
    texts = [text for path, text in files.items() if not path.endswith(".txt")]
    return [resource for text in texts for resource in yaml.safe_load_all(text) if resource]


def of_kind(resources: Sequence[Resource], kind: str) -> list[Resource]:
    return [each for each in resources if each["kind"] == kind]


def pods(resources: Sequence[Resource]) -> Iterator[tuple[str, Resource]]:
    """Yield every template of a pod, with the name of what makes it."""
    for each in resources:
        if each["kind"] in {"Deployment", "Job"}:
            yield each["metadata"]["name"], each["spec"]["template"]


def environment(resources: Sequence[Resource], name: str) -> dict[str, str]:
    """Return the variables of one workload's first container; empty for one that comes from elsewhere."""
    spec = next(template["spec"] for owner, template in pods(resources) if owner == name)
    return {each["name"]: each.get("value", "") for each in spec["containers"][0]["env"]}


def faults(resources: Sequence[Resource]) -> list[str]:
    """Return what breaks a rule that every workload keeps, one sentence each."""
    sentences = [sentence for name, template in pods(resources) for sentence in _faults_of_pod(name, template)]
    labels = [template["metadata"]["labels"] for _name, template in pods(resources)]
    for kind, at in (("PodDisruptionBudget", ("selector", "matchLabels")), ("Service", ("selector",))):
        for each in of_kind(resources, kind):
            selector = each["spec"]
            for step in at:
                selector = selector[step]
            if sum(_matches(selector, those) for those in labels) != 1:
                sentences.append(f"{kind} {each['metadata']['name']} selects not exactly one workload")
    sentences += [
        f"{each['metadata']['name']} does not select its own pods"
        for each in of_kind(resources, "Deployment")
        if not _matches(each["spec"]["selector"]["matchLabels"], each["spec"]["template"]["metadata"]["labels"])
    ]
    policies = of_kind(resources, "NetworkPolicy")
    for name, template in pods(resources):
        kinds = {kind for each in policies if _selects(each, template) for kind in each["spec"]["policyTypes"]}
        if kinds != {"Ingress", "Egress"}:
            sentences.append(f"no network policy closes {name}")
    names = [(each["kind"], each["metadata"]["name"]) for each in resources]
    sentences += [f"{kind} {name} is there twice" for kind, name in names if names.count((kind, name)) > 1]
    return sorted(set(sentences))


def _faults_of_pod(name: str, template: Resource) -> Iterator[str]:
    spec = template["spec"]
    security = spec.get("securityContext", {})
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        yield f"{name} may run as root"
    if security.get("seccompProfile", {}).get("type") not in {"RuntimeDefault", "Localhost"}:
        yield f"{name} has no seccomp profile"
    if spec.get("automountServiceAccountToken") is not False:
        yield f"{name} gets a token of Kubernetes"
    if spec.get("enableServiceLinks") is not False:
        yield f"{name} gets variables for the namespace's services"
    if any(spec.get(each) for each in ("hostNetwork", "hostPID", "hostIPC")):
        yield f"{name} shares namespaces with its node"
    if any("hostPath" in volume for volume in spec.get("volumes", [])):
        yield f"{name} mounts a directory of its node"
    for container in spec["containers"]:
        yield from _faults_of_container(name, container, is_lasting=spec.get("restartPolicy") != "Never")


def _faults_of_container(name: str, container: Resource, *, is_lasting: bool) -> Iterator[str]:
    security = container.get("securityContext", {})
    if security.get("allowPrivilegeEscalation") is not False or security.get("privileged"):
        yield f"{name} may gain privileges"
    if not security.get("readOnlyRootFilesystem"):
        yield f"{name} may write its root"
    if security.get("capabilities") != {"drop": ["ALL"]}:
        yield f"{name} keeps capabilities"
    if "memory" not in container.get("resources", {}).get("limits", {}):
        yield f"{name} has no limit of memory"
    image, _at, digest = container["image"].partition("@")
    tag = image.rpartition(":")[2] if ":" in image.rpartition("/")[2] else ""
    if not digest and tag in {"", "latest"}:
        yield f"{name} has an image without a version"
    if is_lasting and not {"livenessProbe", "readinessProbe"} <= container.keys():
        yield f"{name} has no probes"
    for variable in container.get("env", []):
        if "value" in variable and is_secret(variable["name"]):
            yield f"{name} has a secret in {variable['name']}"


def is_secret(variable: str) -> bool:
    """Tell whether a variable holds a secret itself, by its name."""
    paths = {"TEMPORAL_TLS_KEY"}
    ends = ("_KEY", "_SECRET", "_TOKEN", "_PASSWORD", "DATABASE_URL")
    return variable.endswith(ends) and variable not in paths


def _selects(policy: Resource, template: Resource) -> bool:
    return _matches(policy["spec"]["podSelector"].get("matchLabels", {}), template["metadata"]["labels"])


def _matches(selector: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    return bool(selector) and all(labels.get(name) == value for name, value in selector.items())


# What network policies let through, as https://kubernetes.io/docs/concepts/services-networking/network-policies/ says.


@dataclass(frozen=True, kw_only=True)
class Peer:
    """The other end: a pod by its labels and its namespace's, or an address outside."""

    address: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace: str = NAMESPACE


def is_open(
    resources: Sequence[Resource], template: Resource, direction: str, peer: Peer, port: int, protocol: str = "TCP"
) -> bool:
    """Tell whether the policies let a pod of this template reach the peer (``Egress``), or be reached (``Ingress``)."""
    selecting = [each["spec"] for each in of_kind(resources, "NetworkPolicy") if _selects(each, template)]
    applying = [spec for spec in selecting if direction in spec["policyTypes"]]
    side = {"Egress": "to", "Ingress": "from"}[direction]
    rules = [rule for spec in applying for rule in spec.get(direction.lower()) or []]
    return not applying or any(_lets(rule, side, peer, port, protocol) for rule in rules)


def _lets(rule: Resource, side: str, peer: Peer, port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    if ports and not any(each["port"] == port and each.get("protocol", "TCP") == protocol for each in ports):
        return False
    return not rule.get(side) or any(_is_peer(each, peer) for each in rule[side])


def _is_peer(wanted: Resource, peer: Peer) -> bool:
    if "ipBlock" in wanted:
        block = wanted["ipBlock"]
        inside = [block["cidr"]] if peer.address else []
        address = ipaddress.ip_address(peer.address) if peer.address else None
        return any(address in ipaddress.ip_network(each) for each in inside) and not any(
            address in ipaddress.ip_network(each) for each in block.get("except", [])
        )
    if peer.address:
        return False
    names = {"kubernetes.io/metadata.name": peer.namespace}
    spaces = wanted.get("namespaceSelector")
    in_space = peer.namespace == NAMESPACE if spaces is None else _all(spaces, names)
    return in_space and _all(wanted.get("podSelector", {}), peer.labels)


def _all(selector: Resource, labels: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def worker_security(resources: Sequence[Resource]) -> Resource:
    """Return the security context of the workers' pods: as whom the image runs."""
    template = next(template for name, template in pods(resources) if "worker" in name)
    context: Resource = template["spec"]["securityContext"]
    return context
