"""IPO: a squared loss that pulls the margin of each pair to a finite target, where DPO's sigmoid pulls on for ever.

Azar et al. 2023, arXiv:2310.12036.
Deviations: log-ratios are divided by each side's length, which the paper does not have, for want of an experiment on
language models, and which its authors confirmed to TRL; pairs as in `dpo`.
"""

from algorithms.axes.preference import GradedPairs, Ipo, Preference

objective = Preference(
    loss_function=Ipo(beta=0.1, per_token=True),
    pairing=GradedPairs(max_pairs_per_prompt=8, require_termination=True, rounds=1),
)
sources = {
    "loss_function": "2310.12036, Eq. 17",
    "loss_function.beta": "not stated; TRL 1.16: 0.1",
    "loss_function.per_token": "deviation: TRL 1.16, which asked the authors; Eq. 17 has sums",
    "pairing": "2404.19733, section 2 and its footnote on pairs",
    "pairing.max_pairs_per_prompt": "2404.19733 uses 10; 8 of 16 samples match an online run's gradient tokens",
    "pairing.require_termination": "our choice: a truncated reject teaches ending, not being right",
    "pairing.rounds": "our choice: offline, as in 2305.18290; 2404.19733 has 4",
}
