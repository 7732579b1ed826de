"""How workflow code is run: in one sandbox, by the worker and by the replayer alike, and under which version.

A replay under another sandbox or converter than the worker's would prove nothing, hence one place for both.
"""

from __future__ import annotations

from typing import Final

from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Replayer, WorkerDeploymentConfig
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from turngate.runtime.temporal_client import data_converter, sdk_runtime

SANDBOX: Final = SandboxedWorkflowRunner(
    # Ours and pydantic are deterministic and are shared, not imported anew for every run.
    restrictions=SandboxRestrictions.default.with_passthrough_modules(
        "pydantic", "pydantic_core", "turngate", "workflows"
    )
)


def build_replayer(*workflows: type) -> Replayer:
    """Return a replayer that runs these workflows' code as the worker does."""
    return Replayer(
        workflows=workflows, workflow_runner=SANDBOX, data_converter=data_converter(), runtime=sdk_runtime()
    )


def deployment(name: str, build_id: str | None) -> WorkerDeploymentConfig | None:
    """Return what makes a worker the one of this build; None (no build id): it belongs to no version.

    A run stays with the build that began it, until it continues as new (https://docs.temporal.io/worker-versioning).
    """
    if build_id is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=name, build_id=build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )
