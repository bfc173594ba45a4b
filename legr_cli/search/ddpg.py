"""Deep deterministic policy gradient, as AMC (He et al. 2018) uses it: one episode, one network.

An episode walks through the layers; its actions are numbers in (0, 1), and all of its steps have
the same reward, that of the network in the end.
"""

import copy
from collections import deque
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn

HIDDEN, BATCH, MEMORY = 300, 64, 2000  # neurons of a layer; steps to learn from at once; in memory
ACTOR_RATE, CRITIC_RATE = 1e-4, 1e-3
FOLLOW = 0.01  # τ: how fast the targets follow
NOISE, CALM = 0.5, 0.95  # deviation of an action at first, and by how much it falls an episode
WARM_UP = 4  # one episode of so many, at the beginning, is drawn at random
BASELINE = 0.95  # of the moving average of rewards

Step = tuple[np.ndarray, np.ndarray]  # a state and the action that was taken in it


class Agent:
    """An actor, a critic, their slow targets, and a memory of steps."""

    def __init__(
        self, features: int, actions: int, episodes: int, rng: np.random.Generator
    ) -> None:
        self.actions, self.rng, self.warm_up = actions, rng, max(1, episodes // WARM_UP)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            self.actor = nn.Sequential(_layers(features, actions), nn.Sigmoid())
            self.critic = _layers(features + actions, 1)
        self.slow_actor, self.slow_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_steps = torch.optim.Adam(self.actor.parameters(), ACTOR_RATE)
        self.critic_steps = torch.optim.Adam(self.critic.parameters(), CRITIC_RATE)
        self.memory: deque[tuple[np.ndarray, ...]] = deque(maxlen=MEMORY)
        self.baseline: float | None = None
        self.episodes = 0

    def act(self, state: np.ndarray, episode: int) -> np.ndarray:
        """Random numbers while it warms up; then what the actor says, less and less noisy."""
        if episode < self.warm_up:
            return self.rng.random(self.actions)
        with torch.no_grad():
            means = self.actor(_tensor(state)).double().numpy()
        deviation = NOISE * CALM ** (episode - self.warm_up)
        return np.array([truncated_normal(mean, deviation, self.rng) for mean in means])

    def learn(self, episode: list[Step], reward: float) -> None:
        """Remember an episode, and learn once for each of its steps when it is warm."""
        ends = [*(state for state, _ in episode[1:]), episode[-1][0]]
        for i, ((state, action), then) in enumerate(zip(episode, ends, strict=True)):
            last = np.array([float(i == len(episode) - 1)])
            self.memory.append((state, action, np.array([reward]), then, last))
        before = reward if self.baseline is None else self.baseline
        self.baseline = BASELINE * before + (1 - BASELINE) * reward
        self.episodes += 1
        if self.episodes >= self.warm_up:
            for _ in episode:
                self._step()

    def _step(self) -> None:
        """One step of the critic, one of the actor, and the targets follow."""
        rows = self.rng.integers(len(self.memory), size=BATCH)
        columns = zip(*(self.memory[i] for i in rows), strict=True)
        state, action, reward, then, last = (_tensor(np.stack(column)) for column in columns)
        with torch.no_grad():
            future = self.slow_critic(torch.cat([then, self.slow_actor(then)], 1))
            goal = goals(reward, float(self.baseline or 0.0), future, last)
        error = nn.functional.mse_loss(self.critic(torch.cat([state, action], 1)), goal)
        _descend(self.critic_steps, error)
        _descend(self.actor_steps, -self.critic(torch.cat([state, self.actor(state)], 1)).mean())
        for slow, fast in ((self.slow_actor, self.actor), (self.slow_critic, self.critic)):
            follow(slow, fast)


def goals(reward: Tensor, baseline: float, future: Tensor, last: Tensor) -> Tensor:
    """r − b + Q(s′, μ(s′)), where there is an s′; nothing is discounted."""
    return reward - baseline + (1 - last) * future


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module) -> None:
    """θ′ ← τ·θ + (1 − τ)·θ′."""
    for behind, ahead in zip(slow.parameters(), fast.parameters(), strict=True):
        behind.lerp_(ahead, FOLLOW)


def truncated_normal(mean: float, deviation: float, rng: np.random.Generator) -> float:
    """A normal draw, given that it is between 0 and 1."""
    bell = NormalDist(mean, max(deviation, 1e-6))
    low, high = bell.cdf(0), bell.cdf(1)
    share = low + (high - low) * rng.random()
    return float(np.clip(bell.inv_cdf(np.clip(share, 1e-12, 1 - 1e-12)), 0, 1))


def _layers(into: int, out: int) -> nn.Sequential:
    """Two hidden layers."""
    hidden = nn.Linear(into, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(HIDDEN, out))


def _tensor(numbers: np.ndarray) -> Tensor:
    """In single precision."""
    return torch.from_numpy(np.ascontiguousarray(numbers)).float()


def _descend(steps: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step down."""
    steps.zero_grad(set_to_none=True)
    loss.backward()
    steps.step()
