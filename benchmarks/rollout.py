"""How many tokens a second the built-in sampler draws, beside transformers' generate(), TRL and vLLM.

All engines hold the same weights, see the same prompts and take turns in one process; a row is the median of the
repeats with the quartiles around it. Natural ends, and fixed length where the end token can never come. The share of
the roof compares a rollout with the least time that this machine allows (`machine.rollout_roof`). Run it on an idle
machine; it prints the tables of docs/benchmarks_rollout.md:

    python benchmarks/rollout.py
    python benchmarks/rollout.py --model smollm2
"""

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from breakdown import breakdown, table
from machine import Limits, Roof, Weights, describe, limits, load, machine_line, rollout_roof, weights_of
from samplers import ENGINES, TASK, Sampler, Setting, open_samplers, own_sampler, reference_run, without_end

from bench.config import Prompt
from bench.prepare import starting_model
from bench.prompting import encode_prompts
from bench.seeding import stream_key
from sweeps.cores import usable_cores

BASE, OURS = "generate", "ours"
Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "processor": time.process_time}


@dataclass(frozen=True)
class Measured:
    """One engine in one setting."""

    engine: str
    rates: list[float]
    """Tokens a second of each repeat."""
    seconds: list[float]
    lengths: list[int]
    """Of the last repeat."""


def measure(
    setting: Setting, engines: Sequence[str], repeats: int, clock: Clock
) -> tuple[list[Measured], dict[str, str]]:
    """Let the engines take turns; and why some of them cannot."""
    with ExitStack() as stack:
        samplers, missing = open_samplers(setting, engines, stack)
        return take_turns(setting, samplers, repeats, clock), missing


def take_turns(setting: Setting, samplers: dict[str, Sampler], repeats: int, clock: Clock) -> list[Measured]:
    """Rates of each engine, the first round left out, which warms up."""
    found = {engine: Measured(engine, [], [], []) for engine in samplers}
    for repeat in range(repeats + 1):
        order = list(samplers)[repeat % len(samplers) :] + list(samplers)[: repeat % len(samplers)]
        for engine in order:
            start = clock()
            lengths = samplers[engine](repeat)
            seconds = clock() - start
            assert len(lengths) == setting.rows, engine
            if repeat:
                found[engine].rates.append(sum(lengths) / seconds)
                found[engine].seconds.append(seconds)
                found[engine].lengths[:] = lengths
    return list(found.values())


def ratio(measured: Sequence[Measured], engine: str, base: str = BASE) -> float | None:
    """Median over the repeats of how many times as many tokens a second one engine draws as another."""
    rates = {each.engine: each.rates for each in measured}
    if engine not in rates or base not in rates:
        return None
    return statistics.median(ours / theirs for ours, theirs in zip(rates[engine], rates[base], strict=True))


def roof_of(setting: Setting, weights: Weights, machine: Limits, lengths: Sequence[int]) -> list[Roof]:
    """The least time of each pass of such a rollout."""
    return rollout_roof(weights, [len(prompt) for prompt in setting.prompts], lengths, machine)


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Lower and upper quartile."""
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def setting_rows(
    setting: Setting, measured: Sequence[Measured], missing: dict[str, str], weights: Weights, machine: Limits
) -> tuple[list[str], list[dict[str, Any]]]:
    """Lines of the table, and the same as records."""
    lines: list[str] = []
    records: list[dict[str, Any]] = []
    for each in measured:
        low, high = quartiles(each.rates)
        rate, seconds = statistics.median(each.rates), statistics.median(each.seconds)
        roof = sum(step.seconds for step in roof_of(setting, weights, machine, each.lengths))
        times = ratio(measured, each.engine)
        # The roof belongs to the lengths of one repeat; its rate is compared, so that lengths cancel.
        share = roof / (sum(each.lengths) / rate)
        cells = [
            str(setting.rows), setting.ends, each.engine, f"{rate:,.0f}", f"{low:,.0f} to {high:,.0f}",
            f"{seconds:.3f}", f"{statistics.mean(each.lengths):.1f}", "" if times is None else f"{times:.2f}",
            f"{share:.0%}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
        records.append(
            {"rows": setting.rows, "ends": setting.ends, "engine": each.engine, "rates": each.rates,
             "seconds": each.seconds, "ratio": times, "roof_seconds": roof, "share_of_roof": share}
        )  # fmt: skip
    lines += [f"| {setting.rows} | {setting.ends} | {name} | {why} | | | | | |" for name, why in missing.items()]
    return lines, records


def account(
    setting: Setting, weights: Weights, machine: Limits, repeats: int, clock: Clock
) -> tuple[list[str], dict[str, Any]]:
    """Where our time goes in one setting."""
    run = own_sampler(setting)
    first = own_sampler(dataclasses.replace(setting, max_tokens=1))
    whole, prompts = ([_seconds(call, clock) for _ in range(repeats)] for call in (run, first))
    seconds = statistics.median(whole)
    parts = breakdown(lambda: run(1), seconds, repeats)
    roof = roof_of(setting, weights, machine, run(1))
    limited = max(("products", "memory", "dispatch"), key=lambda name: sum(step.limit == name for step in roof))
    lines = table(parts, f"our time, {setting.rows} rows")
    lines.append("")
    lines.append(
        f"of {1000 * seconds:.1f} ms the prompts and the first token take {1000 * statistics.median(prompts):.1f} ms; "
        f"the roof is {1000 * sum(step.seconds for step in roof):.1f} ms in {len(roof)} passes, most of them "
        f"limited by {limited}"
    )
    return lines, {"seconds": seconds, "parts": [dataclasses.asdict(part) for part in parts]}


def _seconds(call: Sampler, clock: Clock) -> float:
    start = clock()
    call(1)
    return clock() - start


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", choices=("tiny", "random", "smollm2"), default="tiny",
                        help="random is tiny without its warm start")  # fmt: skip
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=["generate", "trl", "ours", "vllm"])
    parser.add_argument("--batches", type=int, nargs="+", help="completions side by side")
    parser.add_argument("--group", type=int, help="completions of a prompt")
    parser.add_argument("--tokens", type=int, help="most tokens of a completion")
    parser.add_argument("--ends", nargs="+", choices=("natural", "never"), default=["natural", "never"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=max(1, int(usable_cores())))
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="processor: for one thread on a busy machine")
    parser.add_argument("--cache", type=Path, default=Path("runs/cache"), help="where the warm-started model is kept")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    given = parser.parse_args()
    large = given.model == "smollm2"
    given.batches = given.batches or ([128] if large else [32, 64, 256])
    given.group = given.group or (8 if large else 16)
    given.tokens = given.tokens or (64 if large else 16)
    if given.clock == "processor" and (given.threads > 1 or "vllm" in given.engines):
        parser.error("--clock processor: counts one thread of this process, so it needs --threads 1 and no vllm")
    for batch in given.batches:
        if batch % given.group:
            parser.error(f"--batches {batch}: must be a multiple of --group {given.group}")
    return given


def main() -> None:
    """Measure and print."""
    given = arguments()
    most = max(given.batches)
    if given.model == "tiny":
        model = starting_model(reference_run(given.cache, most // given.group, given.group, given.tokens)).model
    else:
        model = load("tiny" if given.model == "random" else given.model)
    about = describe()
    machine = limits(given.threads, sides=())
    problems = [TASK.generate("train", stream_key(0, "prompts", i)) for i in range(most // given.group)]
    prompts = encode_prompts(model, TASK, problems, Prompt())
    models = {"natural": model, "never": without_end(model)}
    weights = weights_of(model.network)
    print(f"machine: {machine_line(about)}")
    print(f"{given.model}: {sum(p.numel() for p in model.network.parameters()):,} parameters, {given.threads} threads, "
          f"groups of {given.group}, prompts of {min(map(len, prompts))} to {max(map(len, prompts))} tokens, at most "
          f"{given.tokens} new ones; median of {given.repeats} repeats in turn, {given.clock} time\n")  # fmt: skip
    print(
        "| rows | ends | engine | tokens/s | quartiles | s a rollout | mean length | times generate() | of the roof |"
    )
    print("|---" * 9 + "|")
    records: list[dict[str, Any]] = []
    for ends in given.ends:
        for batch in given.batches:
            setting = Setting(models[ends], prompts[: batch // given.group], given.group, given.tokens, ends)
            measured, missing = measure(setting, given.engines, given.repeats, CLOCKS[given.clock])
            lines, found = setting_rows(setting, measured, missing, weights, machine)
            print("\n".join(lines), flush=True)
            records += found
    everything: dict[str, Any] = {"machine": about, "limits": dataclasses.asdict(machine), "rows": records}
    if OURS in given.engines:
        setting = Setting(models[given.ends[0]], prompts, given.group, given.tokens, given.ends[0])
        lines, everything["breakdown"] = account(setting, weights, machine, given.repeats, CLOCKS[given.clock])
        print("\n" + "\n".join(lines))
        own = next(each for each in records if (each["rows"], each["engine"]) == (most, OURS))
        if own["ratio"] is not None:
            print(f"\nratio to generate(): {own['ratio']:.2f}")
        print(f"share of the decode roof: {own['share_of_roof']:.0%}")
    if given.json:
        given.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
