"""How workflow code runs: in the same sandbox for the worker and the replayer, and with which version.

A replay with another sandbox or converter than the worker's would prove nothing, so both are defined here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from temporalio import workflow
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.converter import PayloadCodec, StorageDriverStoreContext
from temporalio.worker import Replayer, WorkerDeploymentConfig, WorkflowInstance, WorkflowInstanceDetails
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from turngate import __version__
from turngate.runtime.temporal_client import data_converter, sdk_runtime

NO_CONTEXT: Final = StorageDriverStoreContext()


class _WithoutContexts(WorkflowInstance):
    """A run's workflow whose payloads are written without a context.

    For each payload the SDK asks the workflow three times, inside its sandbox, for the converter's context. That code is
    compiled and run each time, in total a tenth of a turn's Python. :func:`data_converter` uses no context and stores nothing
    elsewhere, so the answer makes no difference.
    """

    def __init__(self, inner: WorkflowInstance) -> None:
        self._inner = inner

    def activate(self, act: Any) -> Any:
        return self._inner.activate(act)

    def get_serialization_context(self, command_info: object) -> None:  # noqa: ARG002 - the SDK's signature
        return None

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:  # noqa: ARG002 - as above
        return NO_CONTEXT

    def get_info(self) -> workflow.Info:
        return self._inner.get_info()

    def get_thread_id(self) -> int | None:
        return self._inner.get_thread_id()


@dataclass(frozen=True)
class _Sandbox(SandboxedWorkflowRunner):
    """The SDK's sandbox, which is not asked for contexts."""

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        return _WithoutContexts(super().create_instance(det))


SANDBOX: Final = _Sandbox(
    # Our modules and pydantic are deterministic, so they are shared and not imported again for every run.
    restrictions=SandboxRestrictions.default.with_passthrough_modules("pydantic", "pydantic_core", "turngate")
)


def build_replayer(*workflows: type, codec: PayloadCodec | None = None) -> Replayer:
    """Return a replayer that runs these workflows' code as the worker does. ``codec``: decrypts their histories."""
    return Replayer(
        workflows=workflows,
        workflow_runner=SANDBOX,
        data_converter=data_converter(codec),
        runtime=sdk_runtime(),
        # The SDK's default is a hash over the code of every imported module, which takes a second.
        build_id=f"turngate-{__version__}",
    )


def deployment(name: str, build_id: str | None) -> WorkerDeploymentConfig | None:
    """Return the worker's deployment for this build; None (no build id): the worker has no version.

    A run stays with the build that started it, until it continues as new (https://docs.temporal.io/worker-versioning).
    """
    if build_id is None:
        return None
    return WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=name, build_id=build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )
