"""A short run of one setting in a search of a strategy's options."""

from dataclasses import dataclass

from specdec.costs import Costs


@dataclass(frozen=True, slots=True)
class Trial:
    """A screened setting: totals of tokens, steps, nodes and seconds outside of the model."""

    strategy: str
    num_tokens: int
    num_steps: int
    num_nodes: int
    host_seconds: float

    def plus(self, other: "Trial") -> "Trial":
        """The sums of two screenings."""
        return Trial(
            self.strategy,
            self.num_tokens + other.num_tokens,
            self.num_steps + other.num_steps,
            self.num_nodes + other.num_nodes,
            self.host_seconds + other.host_seconds,
        )

    @property
    def tokens_per_step(self) -> float:
        """tau, as measured."""
        return self.num_tokens / self.num_steps

    @property
    def nodes_per_step(self) -> float:
        """The mean number of nodes, as measured."""
        return self.num_nodes / self.num_steps

    def seconds_per_step(self, costs: Costs) -> float:
        """The predicted time of a step: c(T) at the mean number of nodes, plus the host's work."""
        return costs.at(self.nodes_per_step) + self.host_seconds / self.num_steps

    def tokens_per_second(self, costs: Costs) -> float:
        """The predicted speed."""
        return self.tokens_per_step / self.seconds_per_step(costs)
