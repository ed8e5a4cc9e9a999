"""Steps on their way through the runner: at most one planned, the others in flight."""

from collections import deque

from baton.engine.forward.runner import Launched, ModelRunner
from baton.engine.step.batch import Batch
from baton.engine.step.step_result import StepResult


class StepPipeline:
    """Launches planned steps, and collects their results in the order of their launch."""

    def __init__(self, runner: ModelRunner, ahead: int) -> None:
        """ahead: steps that stay in flight when `run` returns."""
        self.planned: Batch | None = None  # set by the engine, to be launched next
        self.in_flight: deque[Launched] = deque()  # oldest first
        self._runner = runner
        self._ahead = ahead

    @property
    def batches(self) -> list[Batch]:
        """The steps in flight, oldest first, and the planned one."""
        planned = [self.planned] if self.planned is not None else []
        return [launched.batch for launched in self.in_flight] + planned

    @property
    def busy(self) -> bool:
        """True while a step is planned or in flight."""
        return self.planned is not None or bool(self.in_flight)

    def run(self) -> tuple[Batch, StepResult] | None:
        """Launch the planned step, and collect the oldest if one more than `ahead` is in flight.

        With no step planned, collect the oldest. If the step raises, it stays in flight until
        `drop_oldest`.
        """
        ahead = 0
        if self.planned is not None:
            batch, self.planned = self.planned, None
            self.in_flight.append(self._runner.launch(batch))
            ahead = self._ahead
        if len(self.in_flight) <= ahead:
            return None
        oldest = self.in_flight[0]
        result = self._runner.collect(oldest)
        self.in_flight.popleft()
        return oldest.batch, result

    def drop_oldest(self) -> Batch | None:
        """Remove the oldest step in flight, whose forward has raised. None if there is none."""
        return self.in_flight.popleft().batch if self.in_flight else None
