"""How long the estimators take on one core, and how far they are from the truth on data whose truth is known.

Each problem has a chance p of a right answer, drawn from a Beta distribution, a chance of no answer, and distractors
whose shares are drawn from a Dirichlet distribution. Prints the two tables of docs/estimators.md:

    OMP_NUM_THREADS=1 python benchmarks/estimators.py
"""

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np

from bench.evaluation import OutcomeMatrix, estimates
from bench.evaluation.ballots import TIE_RULES, Votes, stack_votes
from bench.evaluation.estimators import elections
from bench.evaluation.exact import cost_of_exact, exact_majority
from bench.evaluation.montecarlo import sampled_majority
from bench.evaluation.reliability import pass_curve

KS = (1, 2, 4, 8, 16, 32, 64)
PROBLEMS, SAMPLES = 1319, 256
ELECTIONS = 200


@dataclass(frozen=True)
class Population:
    """How answers are distributed: p ~ Beta, distractors ~ Dirichlet, and a share of wrong samples without answer."""

    name: str
    beta: tuple[float, float]
    distractors: int
    concentration: float
    missing: float


POPULATIONS = (
    Population("four distractors", (0.5, 0.7), 4, 1.0, 0.05),
    Population("fifty distractors", (0.5, 0.7), 50, 0.3, 0.1),
    Population("hundreds of distractors, a few of them frequent", (0.5, 0.7), 600, 0.05, 0.1),
    Population("hundreds of distractors, all of them rare", (0.5, 2.0), 600, 2.0, 0.1),
    Population("most wrong samples without an answer", (0.5, 0.7), 30, 0.3, 0.7),
    Population("no problem is easy or hopeless", (4.0, 6.0), 100, 0.3, 0.1),
)


def chances(population: Population, rng: np.random.Generator) -> np.ndarray:
    """Chance of each answer of one problem: the right one, none, and every distractor."""
    right = rng.beta(*population.beta)
    wrong = (1 - right) * (1 - population.missing)
    shares = rng.dirichlet(np.full(population.distractors, population.concentration))
    found = np.concatenate([[right, (1 - right) * population.missing], wrong * shares])
    return found / found.sum()


def votes_of(counts: np.ndarray) -> tuple[int, int, Counter[int]]:
    """Votes of one problem, given how many samples have each answer."""
    return int(counts[0]), int(counts[1]), Counter(counts[2:][counts[2:] > 0].tolist())


def matrix_of(counts: np.ndarray) -> OutcomeMatrix:
    """The same samples as outcomes; counts is (problems, answers)."""
    problem, answer = np.nonzero(counts)
    times = counts[problem, answer]
    problem, answer = np.repeat(problem, times), np.repeat(answer, times)
    rows = len(problem)
    no = np.zeros(rows, dtype=bool)
    return OutcomeMatrix(
        problem_id=tuple(map(str, problem)),
        sample=np.arange(rows),
        correct=tuple((answer == 0).tolist()),
        answer_key=tuple(None if key == 1 else str(key) for key in answer.tolist()),
        parsed=answer != 1,
        truncated=no,
        timed_out=no,
        num_tokens=np.ones(rows, dtype=int),
        method=("box",) * rows,
    )


def majority_of_fresh_votes(chance: np.ndarray, k: int, rng: np.random.Generator) -> float:
    """Share of elections with k new votes each that the right answer wins, a tie at random."""
    counts = rng.multinomial(k, chance, size=ELECTIONS)
    most = counts[:, 2:].max(axis=1)
    tied = (counts[:, 2:] == most[:, None]).sum(axis=1)
    return float(
        np.where(counts[:, 0] > most, 1.0, np.where((counts[:, 0] == most) & (most > 0), 1 / (1 + tied), 0)).mean()
    )


def seconds(function, *arguments, repeat: int = 3):
    """Least CPU seconds of some calls, and the result."""
    best, result = np.inf, None
    for _ in range(repeat):
        start = time.process_time()
        result = function(*arguments)
        best = min(best, time.process_time() - start)
    return best, result


def deviation(estimates: np.ndarray, truth: np.ndarray) -> str:
    """Mean difference in points, with its standard error over problems."""
    difference = (estimates - truth) * 100
    return f"{difference.mean():+.2f} ({difference.std(ddof=1) / np.sqrt(len(difference)):.2f})"


def row(population: Population, seed: int) -> str:
    """One line of the first table."""
    rng = np.random.default_rng(seed)
    problems = [chances(population, rng) for _ in range(PROBLEMS)]
    counts = np.stack([rng.multinomial(SAMPLES, chance) for chance in problems])
    votes = stack_votes([votes_of(row) for row in counts])
    pass_seconds, passes = seconds(pass_curve, votes, KS)
    maj_seconds, held = seconds(elections, votes, KS)
    stored_seconds, _ = seconds(estimates, matrix_of(counts), KS, repeat=1)
    true_pass = np.array([1 - (1 - chance[0]) ** KS[-1] for chance in problems])
    true_maj = np.array([majority_of_fresh_votes(chance, KS[-1], rng) for chance in problems])
    assert np.isnan(held.error).all(), "nothing here is beyond the limit of the exact method"
    cells = [
        population.name,
        f"{votes.wrong.sum(axis=1).mean():.0f}",
        f"{votes.num_missing.sum() / votes.num_samples.sum():.0%}",
        f"{pass_seconds:.3f}",
        f"{maj_seconds:.2f}",
        f"{stored_seconds:.1f}",
        deviation(passes[:, -1], true_pass),
        deviation(held.estimate[TIE_RULES.index("random"), :, -1], true_maj),
    ]
    return f"| {' | '.join(cells)} |"


def costly_row(samples: int, k: int, votes: Votes) -> str:
    """One line of the second table: both ways for one problem, and which of them is taken."""
    exact_seconds, exact = seconds(exact_majority, votes, samples, k, repeat=1)
    sampled_seconds, (sampled, error) = seconds(sampled_majority, votes, 0, k, repeat=1)
    taken = "exact" if np.isnan(elections(votes, [k]).error).all() else "random subsets"
    cost = cost_of_exact(votes, samples, k)[0] / 1e6
    values = f"{exact[0, 0]:.4f} | {sampled[0]:.4f} ({error[0]:.4f})"
    return f"| {samples} | {k} | {cost:.1f} | {exact_seconds:.2f} | {sampled_seconds:.2f} | {values} | {taken} |"


def main() -> None:
    """Print both tables."""
    print(f"{PROBLEMS} problems of {SAMPLES} samples, K = {', '.join(map(str, KS))}; CPU seconds.\n")
    print("| answers | distinct wrong | no answer | Pass@K s | Maj@K s | all s | Pass@64 - truth | Maj@64 - truth |")
    print("|---|---|---|---|---|---|---|---|")
    for seed, population in enumerate(POPULATIONS):
        print(row(population, seed))
    print("\nOne problem whose right answer has a close rival among hundreds.\n")
    print("| n | K | cost, 10^6 | exact s | subsets s | exact Maj@K | by subsets (SE) | taken |")
    print("|---|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    for samples, k in ((256, 64), (1024, 256), (1024, 512), (2048, 512), (4096, 1024), (8192, 4096)):
        chance = np.concatenate([[0.12, 0.1], 0.78 * rng.dirichlet(np.concatenate([[43.0], np.full(300, 0.8)]))])
        print(costly_row(samples, k, stack_votes([votes_of(rng.multinomial(samples, chance))])))


if __name__ == "__main__":
    main()
