"""Agreement with a noisy truth: each measure is what it would be of the truth itself, and its interval covers it."""

import numpy as np
import pytest

from bench.statistics import baseline_quality as quality
from bench.statistics.agreement import agreement


def noisy(stream: np.random.Generator, problems: int, each: int, noise: float):
    """Estimates, the true numbers, and what is measured of them; observations of one problem are alike."""
    shared = np.repeat(stream.normal(size=problems), each)
    truth = shared + 0.5 * stream.normal(size=problems * each)
    estimate = 0.6 * truth + 0.3 * stream.normal(size=problems * each) + 0.2
    variance = noise * stream.uniform(0.5, 1.5, size=problems * each)
    measured = truth + np.sqrt(variance) * stream.normal(size=problems * each)
    return estimate, truth, measured, variance, list(np.repeat(np.arange(problems), each))


def test_noise_is_taken_out_of_errors_and_correlations() -> None:
    estimate, truth, measured, variance, problems = noisy(np.random.default_rng(0), 3000, 4, 0.8)
    found = agreement(estimate, measured, variance, problems)
    error = estimate - truth
    factor = (estimate * truth).sum() / (estimate**2).sum()
    expected = {
        "bias": error.mean(),
        "error": np.sqrt((error**2).mean()),
        "error_with_noise": np.sqrt(((estimate - measured) ** 2).mean()),
        "error_of_zero": np.sqrt((truth**2).mean()),
        "error_of_mean": truth.std(),
        "error_at_best_factor": np.sqrt(((factor * estimate - truth) ** 2).mean()),
        "correlation": np.corrcoef(estimate, truth)[0, 1],
        "correlation_with_noise": np.corrcoef(estimate, measured)[0, 1],
        "explained": 1 - error.var() / truth.var(),
    }
    assert {name: found[name].value for name in expected} == pytest.approx(expected, abs=0.025)
    assert (found.observations, found.problems) == (12000, 3000)


def test_extremes() -> None:
    same = np.array([0.0, 0.5, 1.0])
    found = agreement(same, same, np.zeros(3), ["a", "b", "c"])
    assert found["error"].value == 0
    assert found["correlation"].value == found["rank_correlation"].value == found["explained"].value == 1
    opposite = agreement(1 - same, same, np.zeros(3), ["a", "b", "c"])
    assert opposite["correlation"].value == -1
    flat = agreement(np.full(3, 0.5), same, np.zeros(3), ["a", "b", "c"])
    assert np.isnan(flat["correlation"].value)
    assert flat["explained"].value == 0
    alone = agreement(same, same + 0.1, np.zeros(3), ["a", "a", "a"])
    assert alone["bias"].value == pytest.approx(-0.1)
    assert np.isnan(alone["bias"].low)
    with pytest.raises(ValueError, match="no observation"):
        agreement(np.empty(0), np.empty(0), np.empty(0), [])


def test_neither_the_order_of_rows_nor_weights_that_add_up_matter() -> None:
    estimate, _, measured, variance, problems = noisy(np.random.default_rng(1), 30, 2, 0.5)
    order = np.random.default_rng(2).permutation(60)
    whole = agreement(estimate, measured, variance, problems)
    shuffled = agreement(estimate[order], measured[order], variance[order], [problems[i] for i in order])
    twice = [np.repeat(column, 2) for column in (estimate, measured, variance)]
    halves = agreement(*twice, list(np.repeat(problems, 2)), weight=np.full(120, 0.5))
    for name in ("bias", "error", "correlation", "explained"):
        for other in (shuffled, halves):
            assert other[name].value == pytest.approx(whole[name].value)
            assert other[name].low == pytest.approx(whole[name].low, abs=0.1)


@pytest.mark.slow
def test_intervals_cover_what_they_promise() -> None:
    """Of 300 samples of 40 problems, in all measures; percentile intervals cover a little less than 95 %."""
    truth = agreement(*_population(np.random.default_rng(3), 60000))
    names = ("bias", "error", "correlation", "explained", "error_at_best_factor")
    hits = dict.fromkeys(names, 0)
    for seed in range(300):
        found = agreement(*_population(np.random.default_rng(100 + seed), 40))
        for name in names:
            hits[name] += found[name].low <= truth[name].value <= found[name].high
    rates = {name: count / 300 for name, count in hits.items()}
    assert all(0.88 <= rate <= 0.99 for rate in rates.values()), rates


def _population(stream: np.random.Generator, problems: int):
    estimate, _, measured, variance, labels = noisy(stream, problems, 3, 0.4)
    return estimate, measured, variance, labels


def line(**changes: object) -> dict[str, object]:
    plain = {
        "update": 0, "problem_id": "p", "member": 1, "position": 0, "length": 4, "return_to_go": 1.0,
        "group_returns": [0.0, 1.0, 1.0, 0.0], "value_true": 0.5, "value_variance": 0.01, "q_true": 0.75,
        "q_variance": 0.02, "critic_value": 0.4, "critic_advantage": 0.6, "advantage_in_force": 1.1,
    }  # fmt: skip
    return plain | changes


def test_baselines_and_advantages_of_a_line_by_hand() -> None:
    """Member 1 of returns 0, 1, 1, 0: the mean is 1/2, that of the others 1/3; pairs are (1, 1), (1, 0), (1, 0)."""
    lines = [line()]
    expected = {"critic": 0.4 - 0.5, "group_mean": 0.0, "leave_one_out": 1 / 3 - 0.5}
    for name, bias in expected.items():
        assert quality.value_quality(lines, name)["bias"].value == pytest.approx(bias)
    assert quality.value_quality(lines, "leave_one_out", 2)["bias"].value == pytest.approx(1 / 3 - 0.5)
    assert quality.value_quality(lines, "leave_one_out", 2)["error_with_noise"].value == pytest.approx(0.5)
    assert quality.value_quality(lines, "group_mean", 2)["bias"].value == pytest.approx(2 / 3 - 0.5)
    assert quality.value_quality(lines, "group_mean", 5) is None
    expected = {"critic": 0.6, "group_mean": 0.5, "leave_one_out": 2 / 3, "in_force": 1.1}
    expected["standardised"] = 0.5 / (np.std([0, 1, 1, 0], ddof=1) + 1e-4)
    for name, advantage in expected.items():
        assert quality.advantage_quality(lines, name)["bias"].value == pytest.approx(advantage - 0.25)
    noise = quality.advantage_quality(lines, "critic")
    assert noise["error_with_noise"].value ** 2 - noise["error"].value ** 2 == pytest.approx(0.03)


def test_a_missing_number_leaves_its_line_out() -> None:
    lines = [line(), line(value_true=None), line(critic_value=None, group_returns=[None, 1.0, None, 0.0])]
    assert quality.value_quality(lines, "critic").observations == 1
    assert quality.value_quality(lines, "leave_one_out").observations == 2
    assert quality.group_sizes(lines) == [2]
    assert quality.group_sizes(lines[:1]) == [2, 4]
    assert quality.value_quality([line(critic_value=None)], "critic") is None
    equal = quality.advantage_quality([line(group_returns=[1.0] * 4)], "standardised")
    assert equal["bias"].value == pytest.approx(-0.25)


def test_bins_by_position() -> None:
    lines = [line(position=t, length=8) for t in range(8)]
    assert {label: len(own) for label, own in quality.absolute_bins(lines).items()} == {
        "0": 1,
        "1": 1,
        "2-3": 2,
        "4-7": 4,
    }
    assert [len(own) for own in quality.relative_bins(lines).values()] == [2, 2, 2, 2]
    assert quality.latest([line(), line(update=3), line(update=3)]) == [line(update=3)] * 2
