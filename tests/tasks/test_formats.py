"""Form scores: thinking apart from the answer, graded in steps; the JSON of a completion."""

import time

import pytest

from tasks.parts.formats import NotJson, json_value, think_answer_score

GOOD = "<think>2 and 2</think>\n<answer>4</answer>"


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (GOOD, 1.0),
        (f"  {GOOD}\n", 1.0),
        ("<think>a</think><answer>4</answer>", 1.0),
        (f"So: {GOOD}", 0.75),  # text outside
        (f"{GOOD} done", 0.75),
        ("<think>a</think> hence <answer>4</answer>", 0.75),
        ("<think></think><answer>4</answer>", 0.75),  # a part that says nothing
        ("<think>a</think><answer> \n</answer>", 0.75),
        ("<answer>4</answer><think>a</think>", 0.5),  # the other way round
        ("<think>a<answer>4</answer></think>", 0.5),  # one inside the other
        ("<answer><think>a</think>4</answer>", 0.5),
        ("<think>a</think> 4", 0.25),
        ("4 <answer>4</answer>", 0.25),
        ("<think>a<answer>4</answer>", 0.25),  # never closed
        ("<think>a</think><think>b</think><answer>4</answer>", 0.25),  # twice
        ("<think>a</think><answer>4</answer></answer>", 0.25),
        ("</think>a<think><answer>4</answer>", 0.25),  # closed before it is opened
        ("2 and 2</think>\n<answer>4</answer>", 1.0),  # opened by the chat template
        ("\n2 and 2</think> <answer>4</answer> done", 0.75),
        ("</think><answer>4</answer>", 0.75),
        ("<answer>4</answer></think>", 0.5),
        ("a</think> 4", 0.25),
        ("a</think>b</think><answer>4</answer>", 0.25),
        ("</answer>4<answer>", 0.0),
        ("<THINK>a</THINK>", 0.0),
        ("4", 0.0),
        ("", 0.0),
    ],
)
def test_each_step_of_thinking_and_answering_is_a_quarter(text: str, score: float) -> None:
    assert think_answer_score(text) == score


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"answer": 4}', {"answer": 4}),
        (' \n[1, 2.5, null, "x"]\n', [1, 2.5, None, "x"]),
        ('So:\n```json\n{"answer": 4}\n```\nDone.', {"answer": 4}),
        ('```\n{"answer": 4}\n```', {"answer": 4}),
        ('```{"answer": 4}```', {"answer": 4}),
        ('```json\n{"answer": 3}\n```\nor\n```json\n{"answer": 4}\n```', {"answer": 4}),  # the last one
        ('{"code": "no fence"}', {"code": "no fence"}),
    ],
)
def test_the_json_of_a_completion(text: str, value: object) -> None:
    assert json_value(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the answer is 4",
        "{'answer': 4}",
        '{"answer": 4',
        '{"answer": 4} and more',
        '{"answer": NaN}',
        "[Infinity]",
        '```json\n{"answer": 4}',  # never closed
        '```json\n{"answer": 4}\n```\n```json\n{"answer": ',
        '```json\n```\n{"answer": 4}',
        "[" * 100_000,
        "9" * 10_000,
    ],
)
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(NotJson):
        json_value(text)


def test_long_texts_take_no_time() -> None:
    started = time.perf_counter()
    for part in ("<think>", "</think>", "</answer><answer>", "```", "```json\n", " ", "{"):
        text = part * (1_000_000 // len(part))
        assert think_answer_score(text) <= 0.25
        with pytest.raises(NotJson):
            json_value(text)
    assert time.perf_counter() - started < 2
