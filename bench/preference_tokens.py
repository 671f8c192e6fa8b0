"""Preference rows as token ids: the prompt as the policy is given it, and answers that end with its end token, once.

Text is tokenised as a whole, prompt and answer together, and cut behind the prompt's own tokens, so that the answer's
first token is what it is in running text. Where prompt and answer melt into one token at the border, the prompt stays
whole, as it is when the policy answers it, and the answer is tokenised by itself.
"""

from collections.abc import Sequence
from typing import Any

from algorithms.axes.preference import FixedPairs
from bench.models import LanguageModel
from bench.pairs import Made, Pair, lengths_of
from bench.preference_data import Message, PreferenceSet, Preferred, no_template, read_set
from bench.rollout import NothingToLearn


class PairsUnavailable(RuntimeError):
    """The rows of a preference set cannot be had, or cannot be put to this policy; the message says what to change."""


def fetched(source: FixedPairs) -> PreferenceSet:
    """The rows of a set, from the hub or this machine.

    Raises:
        PairsUnavailable: they cannot be had, or are no preferences.
    """
    try:
        return read_set(source)
    except ValueError as error:
        raise PairsUnavailable(f"objective.pairing.path: {error}") from error


def encoded_pairs(model: LanguageModel, data: PreferenceSet, budget: int) -> Made:
    """The pairs of a set and what was left out of it: rows are never cut.

    Args:
        budget: most tokens of an answer, its end token included.

    Raises:
        PairsUnavailable: the rows are conversations and the tokenizer cannot write them.
        NothingToLearn: no row is left.
    """
    if data.conversational and not model.tokenizer.chat_template:
        raise PairsUnavailable(no_template("the policy's tokenizer"))
    pairs: list[Pair] = []
    unknown, too_long, identical = 0, 0, data.num_identical
    shortest: int | None = None
    # Some tokenizers have no token for it but their end token, and then there is nothing that they do not know.
    no_token = model.tokenizer.unk_token_id if model.tokenizer.unk_token_id not in model.end_ids else None
    for row in data.rows:
        pair = encoded(model, row, implicit=data.implicit)
        longest = max(len(pair.chosen), len(pair.rejected))
        whole = len(pair.prompt_ids) + longest
        if no_token in (*pair.prompt_ids, *pair.chosen, *pair.rejected):
            unknown += 1
        elif pair.chosen == pair.rejected:
            identical += 1
        elif longest > budget or (model.context is not None and whole > model.context):
            too_long += 1
            shortest = longest if shortest is None else min(shortest, longest)
        else:
            pairs.append(pair)
    if not pairs:
        why = f", the shortest of which takes {shortest} tokens, end token included" if shortest is not None else ""
        raise NothingToLearn(
            f"no row of the preference set is left: of {data.num_rows}, chosen and rejected are the same in "
            f"{identical}, {unknown} have text that the tokenizer has no token for, and {too_long} do not fit into "
            f"rollout.max_completion_tokens = {budget} and the model's context{why}"
        )
    found = {
        **lengths_of(pairs),
        "dpo/rows": data.num_rows,
        "dpo/rows_identical": identical,
        "dpo/rows_unknown": unknown,
        "dpo/rows_too_long": too_long,
    }
    return Made(pairs, found)


def encoded(model: LanguageModel, row: Preferred, *, implicit: bool) -> Pair:
    """One row as token ids.

    Raises:
        PairsUnavailable: the chat template fails, or does not begin a conversation with its prompt.
    """
    prompt, chosen, rejected = row.prompt, row.chosen, row.rejected
    if isinstance(prompt, str) and isinstance(chosen, str) and isinstance(rejected, str):
        if implicit:
            return _divided(model, prompt, chosen, rejected)
        ids, sides = _continued(model, prompt, [chosen, rejected], special=True)
        return Pair(ids, *(_closed(model, side) for side in sides))
    turns = _messages(prompt)
    text = _written(model, turns, generation_prompt=True)
    answers: list[str] = []
    for side in (chosen, rejected):
        whole = _written(model, [*turns, *_messages(side)], generation_prompt=False)
        if not whole.startswith(text):
            raise PairsUnavailable(
                "objective.pairing.path: the chat template does not begin a conversation with the prompt that it "
                f"writes for an answer ({text[-40:]!r}), so the policy would be trained behind another prompt than it "
                "is given; give rows of text"
            )
        answers.append(whole[len(text) :])
    ids, sides = _continued(model, text, answers, special=False)
    return Pair(ids, *(_closed(model, _up_to_end(model, side)) for side in sides))


def _continued(
    model: LanguageModel, prompt: str, answers: Sequence[str], *, special: bool
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Token ids of the prompt and of each answer behind it."""
    ids = _ids(model, prompt, special=special)
    found: list[tuple[int, ...]] = []
    for answer in answers:
        whole = _ids(model, prompt + answer, special=special)
        ends = whole[: len(ids)] == ids
        found.append(whole[len(ids) :] if ends else _ids(model, answer, special=False))
    return ids, found


def _divided(model: LanguageModel, prompt: str, chosen: str, rejected: str) -> Pair:
    """An implicit prompt ends at the last token that both sides share: the text alone could end within a word."""
    ids = _ids(model, prompt, special=True)
    wholes = [_ids(model, prompt + answer, special=True) for answer in (chosen, rejected)]
    shared = min(_common(ids, whole) for whole in wholes)
    if not shared:
        raise PairsUnavailable(
            f"objective.pairing.path: chosen and rejected share no token at their beginning ({chosen[:40]!r}), which "
            "would be the prompt; give it in a column prompt"
        )
    return Pair(ids[:shared], *(_closed(model, whole[shared:]) for whole in wholes))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two sequences share at their beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _closed(model: LanguageModel, ids: tuple[int, ...]) -> tuple[int, ...]:
    """The answer with an end token behind it, where it has none there yet."""
    return ids if ids and ids[-1] in model.end_ids else (*ids, model.end_ids[0])


def _up_to_end(model: LanguageModel, ids: tuple[int, ...]) -> tuple[int, ...]:
    """What a template wrote of an answer, without blanks behind its end token, which no policy ever comes to say."""
    last = max((i for i, token in enumerate(ids) if token in model.end_ids), default=None)
    if last is None or str(model.tokenizer.decode(list(ids[last + 1 :]))).strip():
        return ids
    return ids[: last + 1]


def _messages(part: str | tuple[Message, ...]) -> tuple[Message, ...]:
    assert not isinstance(part, str), "a row is text or a conversation, whole"
    return part


def _written(model: LanguageModel, messages: Sequence[Message], *, generation_prompt: bool) -> str:
    turns = [{"role": message.role, "content": message.content} for message in messages]
    try:
        return str(model.tokenizer.apply_chat_template(turns, add_generation_prompt=generation_prompt, tokenize=False))
    except Exception as error:  # a template is a program of its author's, and fails in ways of its own
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise PairsUnavailable(
            f"objective.pairing.path: the chat template cannot write a conversation of the set ({reason}): give rows "
            "of text, or messages that it takes"
        ) from error


def _ids(model: LanguageModel, text: str, *, special: bool) -> tuple[int, ...]:
    ids: Any = model.tokenizer(text, add_special_tokens=special)["input_ids"]
    return tuple(ids)
