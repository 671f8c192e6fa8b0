"""SFT: maximum likelihood of the task's worked solutions, the first rung of DeepSeekMath's ladder.

Shao et al. 2024 (DeepSeekMath), arXiv:2402.03300, section 5.2.1.
Deviations: as many completions pass through the loss as in an online run of the same budget; nothing is sampled.
"""

from algorithms.axes.imitation import GoldSolutions, Imitation
from algorithms.axes.reduction import SequenceMean

objective = Imitation(
    source=GoldSolutions(),
    reduction=SequenceMean(),
)
sources = {
    "source": "2402.03300, appendix A.1.1, Eq. 6-7: the SFT data",
    "reduction": "2402.03300, Eq. 6: 1/|o| sum over tokens",
}
