"""Seconds and tokens by phase, with a clock that a test turns by hand."""

from contextlib import suppress

import pytest

from bench.meter import PhaseClock, device_clock, throughput


class HandClock:
    """A clock that moves only when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def record(update, seconds, *, metered=False, attempt=1, completions=0, **tokens):
    counts = {"prompt": 0, "generated": 0, "trained": 0, "padded": 0, **tokens}
    head = {"attempt": attempt, "update": update, "metered": metered}
    return head | {"seconds": seconds, "tokens": counts, "completions": completions}


def test_throughput_is_the_same_at_every_step():  # THR-01
    hand = HandClock()
    clock = PhaseClock(hand)
    records = []
    for update in (1, 2, 3):
        with clock.phase("rollout"):
            hand.now += 2.0
        clock.count(generated=1000)
        records.append(clock.take(attempt=1, update=update, metered=False))
    assert [throughput([one])["generated_tokens_per_second"] for one in records] == [500.0, 500.0, 500.0]
    assert throughput(records)["generated_tokens_per_second"] == 500.0


def test_prompt_tokens_are_not_generated_tokens():  # THR-02
    hand = HandClock()
    clock = PhaseClock(hand)
    with clock.phase("rollout"):
        hand.now += 1.0
    clock.count(prompt=900, generated=100, completions=1)
    rates = throughput([clock.take(attempt=1, update=1, metered=False)])
    assert rates["generated_tokens_per_second"] == 100.0
    assert rates["processed_tokens_per_second"] == 1000.0
    assert rates["phases"]["rollout"] == {"seconds": 1.0, "tokens": 100, "tokens_per_second": 100.0}


def test_trained_tokens_are_summed_over_microbatches():  # THR-03
    hand = HandClock()
    clock = PhaseClock(hand)
    for _ in range(4):
        with clock.phase("policy_update"):
            hand.now += 0.5
            clock.count(trained=250, padded=400)
    taken = clock.take(attempt=1, update=1, metered=False)
    assert taken["tokens"] == {"prompt": 0, "generated": 0, "trained": 1000, "padded": 1600}
    assert taken["seconds"] == {"policy_update": 2.0}
    assert throughput([taken])["trained_tokens_per_second"] == 500.0


def test_taking_a_record_starts_the_next_update_from_zero():
    hand = HandClock()
    clock = PhaseClock(hand)
    with clock.phase("rollout"):
        hand.now += 3.0
    clock.count(generated=7, completions=2)
    expected = record(5, {"rollout": 3.0}, metered=True, attempt=2, completions=2, generated=7)
    assert clock.take(attempt=2, update=5, metered=True) == expected
    assert clock.take(attempt=2, update=6, metered=False) == record(6, {}, attempt=2)


def test_a_phase_inside_a_phase_is_refused():
    clock = PhaseClock(HandClock())
    inside = pytest.raises(AssertionError, match="'reward' opened inside 'rollout'")
    with clock.phase("rollout"), inside, clock.phase("reward"):
        pass
    with clock.phase("rollout"), pytest.raises(AssertionError, match="inside phase 'rollout'"):
        clock.take(attempt=1, update=1, metered=False)


def test_a_phase_that_fails_keeps_its_seconds_and_closes():
    hand = HandClock()
    clock = PhaseClock(hand)
    with suppress(MemoryError), clock.phase("rollout"):
        hand.now += 4.0
        raise MemoryError
    with clock.phase("reward"):
        hand.now += 1.0
    assert clock.take(attempt=1, update=1, metered=False)["seconds"] == {"rollout": 4.0, "reward": 1.0}


def test_start_up_and_metered_updates_are_left_out_and_stated():
    records = [
        record(0, {"pairs": 6.0}, generated=5000),
        record(1, {"rollout": 2.0, "policy_update": 2.0}, generated=100, trained=80, completions=10),
        record(2, {"rollout": 9.0, "policy_update": 9.0}, generated=100, trained=80, completions=10, metered=True),
        record(3, {"rollout": 1.0, "policy_update": 3.0}, generated=200, trained=160, completions=10),
    ]
    rates = throughput(records)
    assert rates["phases"] == {
        "rollout": {"seconds": 3.0, "tokens": 300, "tokens_per_second": 100.0},
        "policy_update": {"seconds": 5.0, "tokens": 240, "tokens_per_second": 48.0},
    }
    assert rates["generated_tokens_per_second"] == 300 / 8
    assert rates["trained_tokens_per_second"] == 240 / 8
    assert rates["completions_per_second"] == 20 / 8
    assert (rates["updates_counted"], rates["updates_excluded"]) == (2, 2)
    assert rates["excluded_seconds"] == 24.0
    assert rates["excluded_share"] == 24 / 32


def test_validation_has_seconds_but_slows_no_rate():
    rates = throughput([record(1, {"rollout": 2.0, "validation": 8.0}, generated=100)])
    assert rates["generated_tokens_per_second"] == 50.0
    assert rates["phases"]["validation"] == {"seconds": 8.0, "tokens": None, "tokens_per_second": None}


def test_work_that_a_run_does_not_do_has_no_rate():
    offline = throughput([record(1, {"policy_update": 2.0}, trained=100)])
    assert offline["generated_tokens_per_second"] is None
    assert offline["completions_per_second"] is None
    assert offline["trained_tokens_per_second"] == 50.0
    nothing = throughput([record(0, {"pairs": 1.0})])
    assert nothing["phases"] == {}
    assert nothing["trained_tokens_per_second"] is None
    assert (nothing["updates_counted"], nothing["excluded_share"]) == (0, 1.0)
    assert throughput([])["excluded_share"] is None


def test_updates_replayed_after_a_resume_were_work_and_count():
    records = [record(4, {"rollout": 1.0}, generated=10), record(4, {"rollout": 3.0}, generated=10, attempt=2)]
    rates = throughput(records)
    assert rates["generated_tokens_per_second"] == 5.0
    assert rates["updates_counted"] == 2


def test_the_cpu_clock_needs_no_synchronisation():
    clock = PhaseClock(device_clock("cpu"))
    with clock.phase("reward"):
        pass
    assert 0 <= clock.take(attempt=1, update=1, metered=False)["seconds"]["reward"] < 1


def test_sampling_before_the_first_update_is_charged():
    """An objective that samples 300 tokens in 3 s, then trains for 1 s: 75 generated tokens a second, one update."""
    records = [
        record(0, {"rollout": 3.0}, generated=300, completions=30),
        record(1, {"policy_update": 1.0}, trained=80),
    ]
    rates = throughput(records)
    assert rates["generated_tokens_per_second"] == 300 / 4
    assert rates["trained_tokens_per_second"] == 80 / 4
    assert (rates["updates_counted"], rates["updates_excluded"]) == (1, 0)
