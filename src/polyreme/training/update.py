"""What follows the microbatches of a step: sums, the norm, clipping, the learning rate, the loss scale, the update."""

import math
from dataclasses import dataclass

from polyreme.models.optimizer import Updater
from polyreme.runtime.gradsync import GradientSync
from polyreme.specs.job import AdamW


@dataclass(slots=True)
class LossScale:
    """Factor on the loss in fp16, so that small gradients do not vanish: halved on overflow, doubled in calm times.

    Micikevicius et al., arXiv 1710.03740, section 3.2. All workers see the same norm, so all keep the same scale.
    """

    value: float = 1.0
    dynamic: bool = False
    calm_steps: int = 0
    growth_interval: int = 2000

    def overflowed(self) -> None:
        """The gradients of a step were not finite."""
        self.value, self.calm_steps = self.value / 2, 0

    def fitted(self) -> None:
        """The gradients of a step were finite."""
        self.calm_steps += 1
        if self.dynamic and self.calm_steps % self.growth_interval == 0:
            self.value *= 2


FIRST_FP16_SCALE = 2.0**16
LEAST_FP16_SCALE = 2.0**-14
"""Below this the loss itself is lost in fp16, and no further halving can help: the run has diverged."""


class StepUpdate:
    """An `Update` of one worker. `gradient_norm` is that of the last step, of the true gradients."""

    def __init__(self, sync: GradientSync, updater: Updater, settings: AdamW, num_steps: int, scale: LossScale) -> None:
        self.sync, self.updater, self.settings, self.num_steps, self.scale = sync, updater, settings, num_steps, scale
        self.step_number = 0
        self.gradient_norm = 0.0
        self.learning_rate = 0.0

    def reduce(self, bucket: int) -> None:
        """See `Update`."""
        self.sync.reduce(bucket)

    def norm(self) -> None:
        """See `Update`."""
        self.gradient_norm = self.sync.norm() / self.scale.value

    def step(self) -> None:
        """Update the weights; a step whose gradients are not finite leaves them as they are."""
        self.learning_rate = self.settings.learning_rate_at(self.step_number, self.num_steps)
        if not math.isfinite(self.gradient_norm):
            self.updater.forget()
            self.scale.overflowed()
            return
        self.updater.step(self.learning_rate, self._clip_factor() / self.scale.value)
        self.scale.fitted()

    @property
    def diverged(self) -> bool:
        """Whether the last step's gradients were not finite for another reason than the loss scale."""
        lowest = LEAST_FP16_SCALE if self.scale.dynamic else math.inf
        return not math.isfinite(self.gradient_norm) and self.scale.value < lowest

    def _clip_factor(self) -> float:
        """Pascanu et al., arXiv 1211.5063, algorithm 1, with the small constant of torch's `clip_grad_norm_`."""
        most = self.settings.clip_norm
        return 1.0 if most is None else min(1.0, most / (self.gradient_norm + 1e-6))
