"""Deep deterministic policy gradient (DDPG), as used by AMC (He et al. 2018).

One episode visits all layers and yields one network. Actions are numbers in (0, 1). Every step of
an episode has the same reward: the accuracy of that network.
"""

import copy
from collections import deque
from statistics import NormalDist

import numpy as np
import torch
from torch import Tensor, nn

HIDDEN = 300  # width of both hidden layers
BATCH, REPLAY = 64, 2000  # steps per update, and in the replay buffer
ACTOR_LR, CRITIC_LR = 1e-4, 1e-3
TAU = 0.01  # rate at which the target networks follow
NOISE, NOISE_DECAY = 0.5, 0.95  # initial standard deviation of actions, and its decay per episode
WARM_UP = 4  # the first 1 / WARM_UP of the episodes are random
BASELINE_DECAY = 0.95  # of the moving average of rewards

Step = tuple[np.ndarray, np.ndarray]  # a state and the action taken in it


class Agent:
    """An actor and a critic with target networks, and a replay buffer."""

    def __init__(
        self, features: int, actions: int, episodes: int, rng: np.random.Generator
    ) -> None:
        self.actions, self.rng, self.warm_up = actions, rng, max(1, episodes // WARM_UP)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(2**62)))
            self.actor = nn.Sequential(_mlp(features, actions), nn.Sigmoid())
            self.critic = _mlp(features + actions, 1)
        self.target_actor = copy.deepcopy(self.actor)
        self.target_critic = copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), ACTOR_LR)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), CRITIC_LR)
        self.replay: deque[tuple[np.ndarray, ...]] = deque(maxlen=REPLAY)
        self.baseline: float | None = None
        self.episodes = 0

    def act(self, state: np.ndarray, episode: int) -> np.ndarray:
        """Choose actions: at random during warm-up, then the actor's plus decaying noise."""
        if episode < self.warm_up:
            return self.rng.random(self.actions)
        with torch.no_grad():
            means = self.actor(_tensor(state)).double().numpy()
        deviation = NOISE * NOISE_DECAY ** (episode - self.warm_up)
        return np.array([truncated_normal(mean, deviation, self.rng) for mean in means])

    def learn(self, episode: list[Step], reward: float) -> None:
        """Store an episode; after warm-up, take one update per step of it."""
        next_states = [*(state for state, _ in episode[1:]), episode[-1][0]]
        for i, ((state, action), next_state) in enumerate(zip(episode, next_states, strict=True)):
            last = np.array([float(i == len(episode) - 1)])
            self.replay.append((state, action, np.array([reward]), next_state, last))
        before = reward if self.baseline is None else self.baseline
        self.baseline = BASELINE_DECAY * before + (1 - BASELINE_DECAY) * reward
        self.episodes += 1
        if self.episodes >= self.warm_up:
            for _ in episode:
                self._update()

    def _update(self) -> None:
        """Update the critic, the actor and the target networks once."""
        rows = self.rng.integers(len(self.replay), size=BATCH)
        columns = zip(*(self.replay[i] for i in rows), strict=True)
        state, action, reward, next_state, last = (_tensor(np.stack(column)) for column in columns)
        with torch.no_grad():
            next_action = self.target_actor(next_state)
            next_value = self.target_critic(torch.cat([next_state, next_action], 1))
            target = td_target(reward, float(self.baseline or 0.0), next_value, last)
        error = nn.functional.mse_loss(self.critic(torch.cat([state, action], 1)), target)
        _minimize(self.critic_optimizer, error)
        value = self.critic(torch.cat([state, self.actor(state)], 1)).mean()
        _minimize(self.actor_optimizer, -value)
        soft_update(self.target_actor, self.actor)
        soft_update(self.target_critic, self.critic)


def td_target(reward: Tensor, baseline: float, next_value: Tensor, last: Tensor) -> Tensor:
    """r − b + Q(s′, μ(s′)), without the last term at the end of an episode; no discount."""
    return reward - baseline + (1 - last) * next_value


@torch.no_grad()
def soft_update(target: nn.Module, online: nn.Module) -> None:
    """θ′ ← τ·θ + (1 − τ)·θ′, in place, where θ′ are the target network's parameters."""
    for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
        slow.lerp_(fast, TAU)


def truncated_normal(mean: float, deviation: float, rng: np.random.Generator) -> float:
    """Draw from a normal distribution truncated to [0, 1]."""
    normal = NormalDist(mean, max(deviation, 1e-6))
    low, high = normal.cdf(0), normal.cdf(1)
    quantile = low + (high - low) * rng.random()
    return float(np.clip(normal.inv_cdf(np.clip(quantile, 1e-12, 1 - 1e-12)), 0, 1))


def _mlp(inputs: int, outputs: int) -> nn.Sequential:
    """A multilayer perceptron with two hidden layers."""
    hidden = nn.Linear(inputs, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(HIDDEN, outputs))


def _tensor(array: np.ndarray) -> Tensor:
    """Convert an array to a float32 tensor."""
    return torch.from_numpy(np.ascontiguousarray(array)).float()


def _minimize(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Take one optimizer step."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
