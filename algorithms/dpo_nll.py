"""DPO with a likelihood term: the chosen side's negative log-likelihood keeps it from falling with the rejected one.

Pang et al. 2024 (IRPO), arXiv:2404.19733.
Deviations: one round, with the starting policy as the reference; no gold solution is added to the chosen sides.
"""

from algorithms.axes.preference import ChosenLikelihood, GradedPairs, Preference, Sigmoid

objective = Preference(
    loss_function=Sigmoid(beta=0.1),
    likelihood=ChosenLikelihood(coefficient=1.0, normalise="sequence"),
    pairing=GradedPairs(max_pairs_per_prompt=8, require_termination=True, rounds=1),
)
sources = {
    "loss_function": "2404.19733, Eq. 1 (conference text)",
    "loss_function.beta": "2404.19733, section 3.1: 0.1",
    "likelihood": "2404.19733, Eq. 1 (conference text; Eq. 2 in the draft)",
    "likelihood.coefficient": "2404.19733, section 3.1: alpha = 1",
    "likelihood.normalise": "2404.19733, section 2: divided by the length of the response",
    "pairing": "2404.19733, section 2 and its footnote on pairs",
    "pairing.max_pairs_per_prompt": "2404.19733 uses 10; 8 of 16 samples match an online run's gradient tokens",
    "pairing.require_termination": "our choice: a truncated reject teaches ending, not being right",
    "pairing.rounds": "deviation: 2404.19733 has 4 rounds; one makes it comparable with the other offline objectives",
}
