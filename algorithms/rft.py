"""RFT: maximum likelihood of the starting policy's own correct samples, drawn once before training.

Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, section 5.2.1; Yuan et al. 2023, arXiv:2308.01825.
Deviations: samples are a matched online run's, not a fixed number a question; repeats are dropped as texts, where Yuan
et al. drop those with the same list of equations.
"""

from algorithms.axes.imitation import AcceptedSamples, Imitation
from algorithms.axes.reduction import SequenceMean

objective = Imitation(
    source=AcceptedSamples(max_per_prompt=None),
    reduction=SequenceMean(),
)
sources = {
    "source": "2402.03300, appendix A.1.2, Eq. 8-10",
    "source.max_per_prompt": "2308.01825, section 3.3: every distinct correct path",
    "reduction": "2402.03300, Eq. 8: 1/|o| sum over tokens",
}
