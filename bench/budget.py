"""The budget that every objective is held to: an online run's rollouts, and completions through each update's loss."""

from bench.config import Rollout, Run


def num_rollouts(run: Run) -> int:
    """Rollouts that an online run of this budget makes."""
    return run.budget.updates // (run.rollout.updates_per_rollout * run.rollout.epochs)


def completions_per_update(rollout: Rollout) -> int:
    """Completions that one update of an online run passes through the loss."""
    return max(1, rollout.prompts * rollout.group_size // rollout.updates_per_rollout)
