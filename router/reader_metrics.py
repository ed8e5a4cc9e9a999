"""The metrics of the choice whether a rank computes a prompt itself."""

from baton.router.metric_factory import RouterMetricFactory
from baton.router.placement.decision import Decision
from baton.router.placement.prefill_here import Verdict, sum_of

PARTS = ("prefill", "rank", "behind", "answers")


class ReaderMetrics:
    """Counters of prompts by who computes them and why, and of the sums by which ranks do."""

    def __init__(self, make: RouterMetricFactory) -> None:
        placed = make.counter(
            "prompts_placed",
            "Prompts placed, by the reason why their rank computes them (here), or why a prefill "
            "worker does.",
            "reason",
        )
        wait = make.counter(
            "prefill_here_wait_seconds",
            "Waiting that was weighed for prompts which ranks compute: of the prompt at its "
            "prefill worker (prefill) and on the rank (rank), that prompts behind it are spared "
            "(behind), and that answers on the rank have more (answers).",
            "part",
        )
        # `labels` takes a lock, so the children are looked up once and not for each request.
        self._placed = {verdict: placed.labels(verdict.name.lower()) for verdict in Verdict}
        self._parts = [wait.labels(part) for part in PARTS]

    def chosen(self, decision: Decision) -> None:
        """Record who computes a prompt, and what was weighed where it is the rank."""
        there, here = decision.there, decision.here
        verdict = decision.prefill_here.verdict(there, here)
        self._placed[verdict].inc()
        if verdict is Verdict.HERE and (weighed := sum_of(there, here)).known:
            parts = (weighed.there_s, weighed.here_s, weighed.behind_s, weighed.answers_s)
            for counter, seconds in zip(self._parts, parts, strict=True):
                counter.inc(seconds)
