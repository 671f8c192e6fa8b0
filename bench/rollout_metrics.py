"""Rollout metrics: what is known of a rollout's rewards, lengths, advantages and log-probabilities, once per rollout.

The glossary has the definition of each name. What cannot be told (no completion of the kind, no log-probability) is
NaN, never 0; an average weighs tokens or completions equally, never groups of unequal size or microbatches.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from algorithms.axes.baseline import degenerate
from algorithms.axes.batch import Credit, Rollout
from algorithms.axes.masked import masked
from algorithms.axes.mismatch import Mismatch, NoCorrection, SequenceMask, SequenceTruncate, token_log_ratio
from algorithms.axes.penalty import kl_estimate
from algorithms.axes.ratio import LARGEST_LOG_RATIO, held_exp
from algorithms.axes.value import explained_variance
from bench.config import Reward
from bench.rollout import Graded, Group


def reward_metrics(groups: Sequence[Group], source: str = "verifier") -> dict[str, float]:
    """Rewards and verdicts of sampled groups. Unscorable completions enter no mean, groups of nothing else no share of
    ties: what has no reward has no equal rewards. Those without a label are no failures to score.

    Args:
        source: the run's `reward.source`. The bits that a learner is told of a model's scores only order a group and
            call nothing right or wrong, so right and wrong are the verifier's there.
    """
    rewards = torch.tensor([[m.reward for m in group.members] for group in groups], dtype=torch.float64)
    told_bits = [_verifier_bits(group) if source == "model" else group.correct for group in groups]
    bits = torch.tensor(told_bits, dtype=torch.float64)
    scorable = rewards.isfinite()
    known = rewards[scorable]
    index = torch.arange(len(groups))[:, None].expand_as(rewards)
    flat = degenerate(rewards.flatten(), index.flatten()).view_as(rewards)[:, 0]
    spreads = [own[mask].std() for own, mask in zip(rewards, scorable, strict=True) if mask.sum() > 1]
    # Of a group that ties, members that could not be scored say nothing about why.
    scored = scorable.any(dim=1)
    told = ~bits.isnan().all(dim=1)
    right, wrong = ((bits == verdict) | bits.isnan() for verdict in (1, 0))
    return {
        "reward/mean": float(known.mean()),
        "reward/std": _std(known),
        "reward/within_group_std": float(torch.stack(spreads).mean()) if spreads else math.nan,
        "reward/accuracy": true_accuracy(groups),
        "reward/num_timed_out": sum(m.grade.timed_out for group in groups for m in group.members),
        **unscorable_metrics(groups),
        "groups/frac_zero_std": _mean(flat[scored].double()),
        "groups/zero_std_all_correct": _mean((flat & told & right.all(dim=1))[scored].double()),
        "groups/zero_std_all_wrong": _mean((flat & told & wrong.all(dim=1))[scored].double()),
        "groups/all_correct": float((bits == 1).all(dim=1).double().mean()),
        "groups/all_wrong": float((bits == 0).all(dim=1).double().mean()),
    }


def _verifier_bits(group: Group) -> list[float]:
    """The verifier's bit of each member with a reward; NaN for the others, and where it could not grade."""
    known = [m.grade.correct if m.scorable else None for m in group.members]
    return [math.nan if bit is None else float(bit) for bit in known]


def true_accuracy(groups: Sequence[Group]) -> float:
    """Share that the verifier calls correct, of what it could grade, whatever the learner is told."""
    bits = [float(m.grade.correct) for group in groups for m in group.members if m.grade.correct is not None]
    return _mean(torch.tensor(bits, dtype=torch.float64))


def unscorable_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """How many completions that carry a label have no reward all the same."""
    members = [member for group in groups for member in group.members if member.labelled]
    lost = sum(not member.scorable for member in members)
    return {"reward/unscorable": lost / len(members) if members else math.nan, "reward/num_unscorable": lost}


def imperfection_metrics(reward: Reward, groups: Sequence[Group]) -> dict[str, float]:
    """What a reward other than the plain verdict tells the learner, against the truth; empty for the plain verdict.

    A reward model alone tells it no verdict, so there is none to compare; `reward_model/*` says how its order agrees.
    """
    members = [member for group in groups for member in group.members]
    metrics: dict[str, float] = {}
    if reward.source != "model" and (reward.noise is not None or reward.source != "verifier"):
        both = [(m.grade.correct, m.observed) for m in members if None not in (m.grade.correct, m.observed)]
        told = [float(m.observed) for m in members if m.observed is not None]
        metrics = {
            "reward/observed_accuracy": _mean(torch.tensor(told, dtype=torch.float64)),
            "reward/false_positives": both.count((False, True)),
            "reward/false_negatives": both.count((True, False)),
            "reward/flip_rate": sum(true != seen for true, seen in both) / len(both) if both else math.nan,
        }
    if reward.functions or reward.format_rule == "json":
        metrics["reward/failures"] = sum(member.failures for member in members)
    if reward.model is not None:
        metrics |= reward_model_metrics(groups, reward.model.clip)
    if reward.sparsity < 1:
        metrics["reward/labelled_rate"] = sum(group.labelled for group in groups) / len(groups)
    return metrics


def reward_model_metrics(groups: Sequence[Group], clip: float | None) -> dict[str, float]:
    """The reward model's scores, before their weight, against the verifier's verdict, of what has both."""
    members = [m for group in groups for m in group.members if m.score is not None and math.isfinite(m.score)]
    scores = torch.tensor([m.score for m in members], dtype=torch.float64)
    graded = torch.tensor([m.grade.correct is not None for m in members], dtype=torch.bool)
    bits = torch.tensor([float(m.grade.correct is True) for m in members], dtype=torch.float64)
    metrics = {
        "reward_model/mean": _mean(scores),
        "reward_model/std": _std(scores),
        "reward_model/correct": _mean(scores[graded & (bits == 1)]),
        "reward_model/wrong": _mean(scores[graded & (bits == 0)]),
        "reward_model/correlation": _correlation(scores[graded], bits[graded]),
        "reward_model/pair_accuracy": _mean(torch.tensor(_ordered_right(groups), dtype=torch.float64)),
    }
    if clip is not None:
        metrics["reward_model/clip_frac"] = _mean((scores.abs() >= clip).double())
    return metrics


def _ordered_right(groups: Sequence[Group]) -> list[float]:
    """For each group with both verdicts: the share of its pairs whose correct side scores higher, equal ones half."""
    shares: list[float] = []
    for group in groups:
        known = [(m.score, m.grade.correct) for m in group.members if m.score is not None and math.isfinite(m.score)]
        right, wrong = ([score for score, bit in known if bit is side] for side in (True, False))
        if right and wrong:
            gaps = [a - b for a in right for b in wrong]
            shares.append(sum((gap > 0) + (gap == 0) / 2 for gap in gaps) / len(gaps))
    return shares


def length_metrics(groups: Sequence[Group]) -> dict[str, float]:
    """Completion lengths in tokens, overall, by ending and by verdict; NaN where no completion is of the kind."""
    members = [member for group in groups for member in group.members]
    kinds = {
        "terminated": [m for m in members if m.completion.terminated],
        "truncated": [m for m in members if not m.completion.terminated],
        "correct": [m for m in members if m.grade.correct is True],
        "incorrect": [m for m in members if m.grade.correct is False],
    }
    mean, low, high = _extent(members)
    metrics = {"len/mean": mean, "len/min": low, "len/max": high}
    for kind, own in kinds.items():
        mean, low, high = _extent(own)
        metrics |= {f"len/{kind}": mean, f"len/{kind}_min": low, f"len/{kind}_max": high}
    return metrics | {"len/clipped_frac": len(kinds["truncated"]) / len(members) if members else math.nan}


def _extent(members: Sequence[Graded]) -> tuple[float, float, float]:
    """Mean, smallest and largest length."""
    lengths = [len(member.completion.token_ids) for member in members]
    return (sum(lengths) / len(lengths), min(lengths), max(lengths)) if lengths else (math.nan, math.nan, math.nan)


def credit_metrics(rollout: Rollout, credit: Credit) -> dict[str, float]:
    """Advantages over the tokens that are trained on, and what shaping made of the reward."""
    advantage = credit.advantage[credit.mask].double()
    known = rollout.scorable & credit.reward.isfinite()
    shaped, reward = credit.reward[known], rollout.reward[known]
    return {
        "adv/mean": _mean(advantage),
        "adv/std": _std(advantage),
        "adv/absmax": float(advantage.abs().max()) if len(advantage) else math.nan,
        "adv/frac_pos": _mean((advantage > 0).double()),
        "reward/shaped_mean": _mean(shaped),
        "reward/shaping": _mean(shaped - reward),
    }


def critic_metrics(rollout: Rollout, credit: Credit) -> dict[str, float]:
    """The critic's values at rollout time against its targets, and against rewards to come, which unlike targets of a
    lambda below 1 hold none of its values; over the tokens that are trained on; empty without a critic."""
    if rollout.value is None or credit.returns is None or credit.monte_carlo is None:
        return {}
    value, returns = rollout.value[credit.mask].double(), credit.returns[credit.mask].double()
    to_go = credit.monte_carlo[credit.mask].double()
    return {
        "value/mean": _mean(value),
        "value/explained_variance": explained_variance(value, returns),
        "value/explained_variance_mc": explained_variance(value, to_go),
        "returns/mean": _mean(returns),
        "returns/std": _std(returns),
        "returns/mc_std": _std(to_go),
    }


def reference_metrics(rollout: Rollout) -> dict[str, float]:
    """Divergence of the rollout's policy from the reference, a token and a completion; empty without a reference."""
    if rollout.ref_logp is None:
        return {}
    metrics: dict[str, float] = {}
    sequences = max(int(rollout.mask.any(dim=1).sum()), 1)
    for estimator in ("k1", "k3"):
        estimate = kl_estimate(rollout.old_logp.double(), rollout.ref_logp.double(), estimator)[rollout.mask]
        metrics[f"kl/ref_{estimator}"] = _mean(estimate)
        metrics[f"kl/ref_{estimator}_seq"] = float(estimate.sum()) / sequences
    return metrics


def mismatch_metrics(rollout: Rollout, correction: Mismatch) -> dict[str, float]:
    """The gap between the sampling engine (mu) and the trainer (pi_old) before the update, and the weights against it.

    With r = pi_old / mu of a token. A token without the engine's log-probability enters no mean, and counts as r = 1 in
    products over a completion and in weights. Where the trainer's own log-probabilities are not known everything is
    NaN.
    """
    assert rollout.sampler_logp is not None, "a rollout of this program has the engine's log-probabilities"
    mask = rollout.mask & rollout.sampler_logp.isfinite()
    old, sampled = rollout.old_logp[mask].double(), rollout.sampler_logp[mask].double()
    unknown = bool(rollout.old_logp[rollout.mask].isnan().any())
    gap = old - sampled
    ratio, product = _weights(rollout)
    ratio = torch.full_like(ratio, math.nan) if unknown else ratio
    product = torch.full_like(product, math.nan) if unknown else product
    return {
        "mismatch/absdiff_mean": _mean(gap.abs()),
        "mismatch/absdiff_max": float(gap.abs().max()) if len(gap) else math.nan,
        "mismatch/pearson": _correlation(old.exp(), sampled.exp()),
        "mismatch/kl_k1": _mean(-gap),
        "mismatch/kl_k3": _mean(torch.expm1(gap.clamp(max=LARGEST_LOG_RATIO)) - gap),
        "mismatch/chi2_token": _mean(ratio[mask] ** 2) - 1,
        "mismatch/chi2_seq": _mean(product[mask.any(dim=1)] ** 2) - 1,
        "mismatch/ppl_ratio": _perplexity_ratio(rollout, mask),
        "ess/mismatch_token": effective_share(ratio[rollout.mask]),
        "ess/mismatch_seq": effective_share(product[rollout.mask.any(dim=1)]),
        **_weight_metrics(rollout, correction, ratio, product),
    }


def largest_gap(rollout: Rollout, first_row: int = 0) -> float:
    """Largest |pi_old - mu| of a token in nats from row `first_row` on; earlier rows are an older policy's samples."""
    assert rollout.sampler_logp is not None, "a rollout of this program has the engine's log-probabilities"
    gap = (rollout.old_logp - rollout.sampler_logp)[first_row:][rollout.mask[first_row:]].abs()
    known = gap[gap.isfinite()]
    return float(known.max()) if len(known) else 0.0


def mean_gap(rollout: Rollout, first_row: int = 0) -> float:
    """Mean |pi_old - mu| of a token in nats from row `first_row` on; 0 where none is known."""
    assert rollout.sampler_logp is not None, "a rollout of this program has the engine's log-probabilities"
    gap = (rollout.old_logp - rollout.sampler_logp)[first_row:][rollout.mask[first_row:]].abs()
    known = gap[gap.isfinite()].double()
    return float(known.mean()) if len(known) else 0.0


def effective_share(weights: Float[Tensor, "number"]) -> float:
    """(sum w)^2 / (N sum w^2), in (0, 1]: the share of samples that as many equal weights would need."""
    if not len(weights):
        return math.nan
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


def _weights(rollout: Rollout) -> tuple[Float[Tensor, "batch tokens"], Float[Tensor, "batch"]]:
    """pi_old / mu of each token and its product over each completion, held within e^+-20 as the corrections hold it."""
    log_ratio = token_log_ratio(rollout)
    return held_exp(log_ratio).double(), held_exp(log_ratio.sum(dim=1)).double()


def _weight_metrics(
    rollout: Rollout, correction: Mismatch, ratio: Float[Tensor, "batch tokens"], product: Float[Tensor, "batch"]
) -> dict[str, float]:
    """The correction's weights over tokens, and the share that its bounds changed; the plain ratio without one."""
    per_completion = isinstance(correction, SequenceTruncate | SequenceMask)
    raw = (product[:, None].expand(ratio.shape) if per_completion else ratio)[rollout.mask]
    weight = correction(rollout)
    own = raw if weight is None else weight[rollout.mask].double()
    return {
        "is_weight/min": float(own.min()) if len(own) else math.nan,
        "is_weight/mean": _mean(own),
        "is_weight/max": float(own.max()) if len(own) else math.nan,
        "is_weight/frac_bounded": 0.0 if isinstance(correction, NoCorrection) else _mean((own != raw).double()),
    }


def _perplexity_ratio(rollout: Rollout, mask: Bool[Tensor, "batch tokens"]) -> float:
    """Mean over completions of the trainer's perplexity over the engine's, over tokens that have both."""
    assert rollout.sampler_logp is not None
    gap = masked((rollout.sampler_logp - rollout.old_logp).double(), mask).sum(dim=1)
    count = mask.sum(dim=1)
    return _mean((gap / count.clamp(min=1)).exp()[count > 0])


def _correlation(first: Float[Tensor, "number"], second: Float[Tensor, "number"]) -> float:
    """Pearson's; NaN where one of them does not vary."""
    if len(first) < 2:
        return math.nan
    a, b = first - first.mean(), second - second.mean()
    scale = float(a.norm() * b.norm())
    return float((a * b).sum()) / scale if scale else math.nan


def _mean(values: Float[Tensor, "number"]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _std(values: Float[Tensor, "number"]) -> float:
    return float(values.std()) if len(values) > 1 else math.nan
