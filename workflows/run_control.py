"""Control of a live run: what people ordered is in the store, and the workflow does it."""

from __future__ import annotations

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from turngate.domain import contract
    from turngate.domain.contract import ReadControlInput, ReadControlResult
    from turngate.domain.runs.turn_state import TurnState
    from turngate.workflows import activity_options
    from turngate.workflows.in_flight import InFlight


class RunControl:
    """Interrupt, pause and resume, as the store has them. Only the run's own workflow uses it."""

    def __init__(self, run_id: str, state: TurnState, in_flight: InFlight) -> None:
        self._run_id = run_id
        self._state = state
        self._in_flight = in_flight
        self._is_reading = False
        self._is_stale = False

    async def read(self) -> None:
        """Read what is ordered now, and do it. A call while another one reads makes that one read once more."""
        self._is_stale = True
        if self._is_reading:
            await workflow.wait_condition(lambda: not self._is_reading)
            return
        self._is_reading = True
        try:
            while self._is_stale and not self._state.interrupted:
                self._is_stale = False
                order = ReadControlInput(run_id=self._run_id)
                control: ReadControlResult = await workflow.execute_activity(
                    contract.READ_CONTROL, order, result_type=ReadControlResult, **activity_options.READ_CONTROL
                )
                self._state.paused = control.held
                if control.interrupted:
                    self._in_flight.interrupt("engine")
        finally:
            self._is_reading = False
