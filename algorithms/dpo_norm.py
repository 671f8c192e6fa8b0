"""Length-normalised DPO: each side's log-ratio is divided by its length before the sigmoid.

Lambert et al. 2024 (Tulu 3), arXiv:2411.15124.
Deviations: pairs as in `dpo`.
"""

from algorithms.axes.preference import GradedPairs, Preference, SigmoidNorm

objective = Preference(
    loss_function=SigmoidNorm(beta=5.0),
    pairing=GradedPairs(max_pairs_per_prompt=8, require_termination=True, rounds=1),
)
sources = {
    "loss_function": "2411.15124, section 5.1",
    "loss_function.beta": "2411.15124, Table 20: 5",
    "pairing": "2404.19733, section 2 and its footnote on pairs",
    "pairing.max_pairs_per_prompt": "2404.19733 uses 10; 8 of 16 samples match an online run's gradient tokens",
    "pairing.require_termination": "our choice: a truncated reject teaches ending, not being right",
    "pairing.rounds": "our choice: offline, as in 2305.18290; 2404.19733 has 4",
}
