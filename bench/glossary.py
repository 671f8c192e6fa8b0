"""The one list of metric names: what each means, and in which unit. `metrics.jsonl` holds these names and no others."""

METRICS: dict[str, str] = {
    "update": "number of optimizer steps taken",
    "loss": "the objective's value; near 0 is normal for a centred advantage: watch reward/mean and grad_norm instead",
    "grad_norm": "global 2-norm of the policy's gradient before clipping",
    "grad_clip_frac": (
        "1 where that norm was above the limit and the gradient was scaled down, else 0; its mean is the share"
    ),
    "lr": "learning rate read back from the optimizer",
    "relative_update_norm": "2-norm of the step's change of all parameters / 2-norm of the parameters after it",
    "entropy": "mean over tokens of the exact entropy of softmax(logits / temperature), nats",
    "reward/mean": "mean of the run's whole reward over all scorable completions sampled, before shaping and selection",
    "reward/std": "standard deviation of the same, ddof 1",
    "reward/within_group_std": "mean over groups of the standard deviation within the group, ddof 1",
    "reward/accuracy": (
        "share of completions sampled that the verifier calls correct, of those it could grade, before selection: the "
        "true verdict, whatever the reward makes of it"
    ),
    "reward/observed_accuracy": (
        "share of the same that the learner was told is correct: after reward.noise, or by another reward.source; this "
        "and the next three are not there where the source is a reward model, whose scores only order a group"
    ),
    "reward/false_positives": "number of completions sampled that are wrong and that the learner was told are correct",
    "reward/false_negatives": "number of completions sampled that are correct and that the learner was told are wrong",
    "reward/flip_rate": "share of completions with both verdicts in which they differ",
    "reward/labelled_rate": (
        "share of prompts sampled (of pairs found, where an objective learns from pairs) that carry a label"
    ),
    "reward_model/mean": (
        "mean over completions sampled of the reward model's score: standardised and cut where the run does so, before "
        "its weight"
    ),
    "reward_model/std": "standard deviation of the same, ddof 1",
    "reward_model/correct": "mean score of completions that the verifier calls correct",
    "reward_model/wrong": "mean score of completions that it calls wrong",
    "reward_model/correlation": "correlation over completions of the score and the verifier's verdict",
    "reward_model/pair_accuracy": (
        "mean over groups with both verdicts of the share of pairs whose correct side scores higher, equal ones half: "
        "what the trained model's held-out accuracy has become on the present policy's samples"
    ),
    "reward_model/clip_frac": "share of scores that reward.model.clip cut",
    "reward/failures": (
        "completions on which a reward function (or the check against a JSON schema) raised, took too long or returned "
        "nonsense, once for each function"
    ),
    "reward/num_timed_out": "number of completions sampled whose grader ran out of time, which counts as wrong",
    "reward/unscorable": (
        "share of completions, of those that carry a label, whose reward could not be told; they take part in nothing"
    ),
    "reward/num_unscorable": "number of such completions among those sampled",
    "reward/shaped_mean": (
        "mean reward that the baseline saw, over scorable completions of groups trained on: after shaping and after a "
        "penalty charged per completion"
    ),
    "reward/shaping": (
        "mean over the same of that reward - the run's whole reward: what shaping and such a penalty changed"
    ),
    "groups/frac_zero_std": (
        "share of groups sampled, of those with a scorable completion, whose scorable rewards are all equal up to "
        "rounding, for whatever reason"
    ),
    "groups/zero_std_all_correct": (
        "share of the same groups that are such and whose known verdicts are all correct; the rest of "
        "groups/frac_zero_std after both splits ties for another reason. Verdicts here and in the next three are those "
        "that the learner is told; the verifier's where reward.source is model"
    ),
    "groups/zero_std_all_wrong": "share of the same groups that are such and whose known verdicts are all wrong",
    "groups/all_correct": (
        "share of groups in which every completion is correct by the same verdicts, whatever their rewards; one that "
        "is unscorable counts against it"
    ),
    "groups/all_wrong": "share of groups in which every completion is wrong, likewise",
    "groups/kept_frac": "groups trained on / groups sampled in this rollout; below 1 under dynamic sampling",
    "groups/rounds": "rounds of sampling that the rollout took",
    "groups/carried": "groups trained on that were left over by earlier rollouts, which counted their completions",
    "prompts/seen": "distinct problems of a finite training split sampled so far",
    "prompts/unseen": "problems of a finite training split not sampled yet",
    "len/mean": "mean length of all completions sampled, tokens",
    "len/min": "shortest completion, tokens",
    "len/max": "longest completion, tokens",
    "len/clipped_frac": (
        "share of completions sampled that the budget cut, which is told by the sampler and not by the length"
    ),
    "len/terminated": "mean length of completions that ended by themselves, tokens",
    "len/terminated_min": "shortest of these",
    "len/terminated_max": "longest of these",
    "len/truncated": "mean length of completions cut by the budget, tokens",
    "len/truncated_min": "shortest of these",
    "len/truncated_max": "longest of these",
    "len/correct": "mean length of completions that are correct, tokens",
    "len/correct_min": "shortest of these",
    "len/correct_max": "longest of these",
    "len/incorrect": "mean length of completions that are wrong, tokens",
    "len/incorrect_min": "shortest of these",
    "len/incorrect_max": "longest of these",
    "adv/mean": "mean advantage over the tokens trained on",
    "adv/std": "standard deviation of advantages over tokens, ddof 1",
    "adv/absmax": "largest |advantage| of a token",
    "adv/frac_pos": "share of tokens with a positive advantage",
    "clip/low": "share of tokens with ratio < 1 - low and negative advantage",
    "clip/high": "share of tokens with ratio > 1 + high and positive advantage",
    "clip/region": "clip/low + clip/high",
    "clip/dual": "share of tokens with ratio > cap and negative advantage, whose loss the cap holds",
    "clip/cispo": "share of tokens whose importance weight a bound holds, whatever the advantage",
    "clip/cispo_positive": "share of tokens whose weight the upper bound holds and whose advantage is positive",
    "ratio/mean": "mean over tokens of the importance ratio that the loss uses, also where that is one per completion",
    "ratio/max": "largest of the same",
    "ratio/var": "variance over tokens of the same, ddof 0",
    "ess/update_token": (
        "(sum w)^2 / (N sum w^2) over N tokens, w = pi / pi_old of a token: effective share of the sample after the "
        "steps so far"
    ),
    "ess/update_seq": "the same over completions, w the product of pi / pi_old over the completion",
    "ess/mismatch_token": (
        "the same over tokens, w = pi_old / mu: trainer before the update over sampling engine, before any correction"
    ),
    "ess/mismatch_seq": "the same over completions, w the product of pi_old / mu over the completion",
    "kl/old_k1": "mean over tokens of old_logp - logp",
    "kl/old_k3": "mean over tokens of the k3 estimate of KL(old || current)",
    "kl/ref_k1": "mean over the rollout's tokens of old_logp - ref_logp, where a reference is loaded",
    "kl/ref_k3": "mean over tokens of the k3 estimate of KL(policy || reference), where a reference is loaded",
    "kl/ref_k1_seq": "mean over completions of the sum over tokens of old_logp - ref_logp",
    "kl/ref_k3_seq": "mean over completions of the sum over tokens of the k3 estimate",
    "mismatch/absdiff_mean": (
        "mean over tokens of |trainer's - sampler's log-probability|, both before the update; groups carried over are "
        "an older policy's"
    ),
    "mismatch/absdiff_max": "largest of the same",
    "mismatch/pearson": "correlation over tokens of the two probabilities",
    "mismatch/kl_k1": "mean over tokens of the sampler's - the trainer's log-probability: KL(mu || pi_old)",
    "mismatch/kl_k3": "mean over tokens of r - 1 - log r, r = pi_old / mu",
    "mismatch/chi2_token": "mean over tokens of r^2, minus 1",
    "mismatch/chi2_seq": "mean over completions of (product of r)^2, minus 1",
    "mismatch/ppl_ratio": (
        "mean over completions of exp(mean log mu - mean log pi_old): the trainer's perplexity over the sampler's"
    ),
    "is_weight/min": (
        "smallest over tokens of the mismatch correction's weight; of pi_old / mu where there is no correction"
    ),
    "is_weight/mean": "mean of the same",
    "is_weight/max": "largest of the same",
    "is_weight/frac_bounded": (
        "share of tokens whose weight the correction's bounds clip or mask; 0 without a correction"
    ),
    "value/loss": "the critic's loss, mean over tokens",
    "value/mean": "mean over trained tokens of the critic's value at rollout time",
    "value/clip_frac": "share of tokens whose value loss the clip holds",
    "value/explained_variance": (
        "1 - Var(return - V) / (Var(return) + 1e-5) over tokens, V at rollout time and the return being the critic's "
        "target, which holds V itself where lambda is below 1"
    ),
    "value/explained_variance_mc": (
        "the same against the discounted rewards to come, which hold no V; a completion that the budget cut ends there"
    ),
    "value/grad_norm": "global 2-norm of the critic's gradient before clipping",
    "returns/mean": "mean over trained tokens of the critic's target",
    "returns/std": "standard deviation of the same, ddof 1",
    "returns/mc_std": "standard deviation of the discounted rewards to come, ddof 1",
    "dpo/accuracy": "share of pairs whose chosen side has the larger summed log-ratio to the reference",
    "dpo/margin": "mean of beta * (log-ratio of chosen - of rejected), summed also where the loss divides by lengths",
    "dpo/chosen_reward": "mean of beta * log-ratio of the chosen side to the reference, summed over tokens",
    "dpo/rejected_reward": "mean of beta * log-ratio of the rejected side",
    "dpo/chosen_logp": "mean summed log-probability of chosen completions",
    "dpo/rejected_logp": "mean summed log-probability of rejected completions",
    "dpo/passes": "passes over the round's pairs so far",
    "dpo/round": "number of the round that these pairs are of, from 1; offline pairs and a fixed set are one round",
    "dpo/num_pairs": "pairs found in the round, or in the rows of a fixed set",
    "dpo/prompts_sampled": "prompts sampled in the round",
    "dpo/prompts_used": "share of sampled prompts that gave a pair",
    "dpo/prompts_all_right": "share of sampled prompts whose every known verdict is right, as the learner is told",
    "dpo/prompts_all_wrong": "share of sampled prompts whose every known verdict is wrong, likewise",
    "dpo/ties_dropped": (
        "distinct completions on no side of a pair because their reward is the mean of their prompt's usable ones, as "
        "all are where all are right or all are wrong"
    ),
    "dpo/identical_dropped": "completions left out because another one of the same prompt has the same tokens",
    "dpo/truncated_dropped": "distinct completions left out because the budget cut them",
    "dpo/gold_pairs": "pairs whose chosen side is the task's worked solution, because every sample was wrong",
    "dpo/chosen_length": "mean length of the pairs' chosen sides, tokens",
    "dpo/rejected_length": "mean length of the pairs' rejected sides, tokens",
    "dpo/length_gap": "mean over pairs of the length of chosen - of rejected, tokens",
    "dpo/rows": "rows of a fixed preference set",
    "dpo/rows_identical": "rows left out because chosen and rejected are the same, as text or as tokens",
    "dpo/rows_unknown": "rows left out because the tokenizer has no token for some of their text",
    "dpo/rows_too_long": (
        "rows left out because one side, end token included, is longer than rollout.max_completion_tokens, or the "
        "whole than the model's context; nothing is cut"
    ),
    "imitation/logp": "mean log-probability of the imitated completions' tokens, at temperature 1",
    "imitation/passes": "passes over the imitated completions so far",
    "imitation/num_completions": "distinct completions to imitate",
    "imitation/prompts_used": "share of distinct prompts that gave a completion to imitate",
    "imitation/too_long": "share of distinct worked solutions left out because the completion budget cannot hold them",
    "tokens/generated": "tokens sampled for training so far",
    "tokens/trained": "completion tokens that passed through the loss so far",
    "completions/generated": "completions sampled for training so far",
    "validation/pass@1": "share correct on the validation split, sampled at the run's temperature",
}
