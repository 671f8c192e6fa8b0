"""DPO: a classification loss on pairs of a chosen and a rejected completion.

Rafailov et al. 2023, arXiv:2305.18290; pairs from graded samples as in Pang et al. 2024 (IRPO), arXiv:2404.19733.
Deviations: preferences come from the run's reward, not from people; one round, offline; without IRPO's likelihood term.
"""

from algorithms.axes.preference import GradedPairs, Preference, Sigmoid

objective = Preference(
    loss_function=Sigmoid(beta=0.1),
    pairing=GradedPairs(max_pairs_per_prompt=8, require_termination=True, rounds=1),
)
sources = {
    "loss_function": "2305.18290, Eq. 7",
    "loss_function.beta": "2305.18290, appendix B: 0.1",
    "pairing": "2404.19733, section 2 and its footnote on pairs",
    "pairing.max_pairs_per_prompt": "2404.19733 uses 10; 8 of 16 samples match an online run's gradient tokens",
    "pairing.require_termination": "our choice: a truncated reject teaches ending, not being right",
    "pairing.rounds": "our choice: offline, as in 2305.18290; 2404.19733 has 4",
}
