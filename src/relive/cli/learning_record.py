"""What happened while a demo was learning, in the order in which it happened: for the display and for the curve."""

import dataclasses


@dataclasses.dataclass(kw_only=True)
class LearningRecord:
    """Steps, episodes and greedy checks so far.

    Attributes:
        steps: Environment steps over all actors.
        episode_ends: `steps` at the end of each episode that ran to its end.
        episode_returns: The sum of rewards of each of them.
        check_steps: `steps` at each greedy check of the network.
        check_means: Its mean return.
    """

    steps: int = 0
    episode_ends: list[int] = dataclasses.field(default_factory=list)
    episode_returns: list[float] = dataclasses.field(default_factory=list)
    check_steps: list[int] = dataclasses.field(default_factory=list)
    check_means: list[float] = dataclasses.field(default_factory=list)

    def add_episode(self, episode_return: float) -> None:
        """Note an episode that has ended just now."""
        self.episode_ends.append(self.steps)
        self.episode_returns.append(episode_return)

    def add_check(self, mean_return: float) -> None:
        """Note a greedy check of the network as it is now."""
        self.check_steps.append(self.steps)
        self.check_means.append(mean_return)

    def recent_mean_return(self, episodes: int = 20) -> float | None:
        """Return the mean return of the last `episodes` episodes, or of as many as there are; None for none."""
        recent = self.episode_returns[-episodes:]
        return sum(recent) / len(recent) if recent else None
