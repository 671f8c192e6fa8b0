"""Overlap of test and training questions: what counts as the same, and the counts on GSM8K."""

import json
import random
import time
from pathlib import Path

import pytest

from bench.overlap import GRAM_WORDS, overlap, task_overlap, words
from tasks.chain_sum import ChainSum
from tasks.gsm8k import Gsm8k
from tasks.parts.problem import Problem


def _problems(name: str, *texts: str) -> list[Problem]:
    return [Problem(id=f"{name}/{i}", prompt=text, gold="1") for i, text in enumerate(texts)]


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("Tom has 3 apples.  How many?", "tom has 3 apples\nhow many", True),
        ("It costs $1,000, he said.", "It costs 1000 he said", True),
        ("She doesn't - he's in", "she doesn\u2019t, he\u2019s in", True),
        ("\uff34om \u200bhas", "Tom has", True),
        ("What is 3+2?", "What is 3-2?", False),
        ("What is 3-2?", "What is 3 - 2 ?", True),
        ("3.5 litres", "35 litres", False),
        ("a 10-year-old boy", "a 10 year old boy", True),
        ("50% of 8", "50 of 8", False),
        ("?", "!", False),
    ],
)
def test_what_makes_two_questions_the_same(left: str, right: str, same: bool) -> None:
    found = overlap(_problems("train", left), _problems("test", right))
    assert (found.exact, found.ten_gram) == (int(same), int(same))


def test_ten_words_in_a_row_count_and_nine_do_not() -> None:
    common = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    train = _problems("train", f"a b {' '.join(common)} c")
    test = _problems(
        "test", f"x {' '.join(common)}, y", f"x {' '.join(common[:9])} y z", "three FOUR five.", "five four"
    )
    found = overlap(train, test)
    assert (found.num_train, found.num_test, found.exact, found.ten_gram) == (1, 4, 0, 2)
    assert found.ids == ("test/0", "test/2")  # a short question counts as a whole
    assert overlap(train, test, grams=False).ten_gram == 0


def test_the_question_counts_without_the_instruction() -> None:
    """By the problem's own question; where it has none, by leaving out what most test prompts share."""
    instruction = "Reason step by step and then end with one last line that has it"
    train = _problems("train", *(f"train {i}. {instruction}" for i in range(30)))
    bare = [Problem(id=p.id, prompt=p.prompt, gold="1", question=p.prompt.partition(".")[0]) for p in train]
    test = _problems("test", *(f"Other question {i + 100}. {instruction}" for i in range(30)))
    assert overlap(train, test).ten_gram == 0
    assert overlap(bare, [bare[3], *test]).ids == ("train/3",)


def test_grams_agree_with_comparing_every_pair() -> None:
    draw = random.Random(7)
    texts = [" ".join(draw.choices("ab", k=draw.randint(1, 24))) for _ in range(60)]
    train, test = _problems("train", *texts[:20]), _problems("test", *texts[20:])

    def shares(question: str) -> bool:
        own = words(question)
        length = min(GRAM_WORDS, len(own))
        grams = [f" {' '.join(own[i : i + length])} " for i in range(len(own) - length + 1)]
        return any(gram in f" {' '.join(words(problem.prompt))} " for gram in grams for problem in train)

    expected = {problem.id for problem in test if shares(problem.prompt)}
    assert 5 < len(expected) < 40
    assert set(overlap(train, test).ids) == expected


def test_gsm8k_has_no_test_question_in_training_and_ten_that_share_ten_words(shared_dir: Path) -> None:
    def read(split: str) -> list[Problem]:
        lines = (shared_dir / f"data/gsm8k_{split}.jsonl").read_text().splitlines()
        return _problems(split, *(json.loads(line)["question"] for line in lines))

    train, test = read("train"), read("test")
    start = time.process_time()
    found = overlap(train, test)
    assert time.process_time() - start < 3.0
    assert (found.num_train, found.num_test, found.exact, found.ten_gram) == (7473, 1319, 0, 10)
    planted = overlap([*train[:50], *test[5:8]], test[:100])
    assert planted.ids == ("test/5", "test/6", "test/7")


def test_a_task_with_data_is_compared_with_its_own_test_split_or_with_anothers(tmp_path: Path) -> None:
    rows = [json.dumps({"question": f"What is {i} plus {i}?", "answer": f"#### {2 * i}"}) for i in range(40)]
    (tmp_path / "gsm8k_train.jsonl").write_text("\n".join(rows[:20]))
    (tmp_path / "gsm8k_test.jsonl").write_text("\n".join(rows[18:]))
    found = task_overlap(Gsm8k(path=str(tmp_path)))
    # The last 5 % of the training rows are validation.
    assert {name: found[name] for name in ("num_train", "num_test", "exact")} == {
        "num_train": 19, "num_test": 22, "exact": 1,
    }  # fmt: skip
    assert found["ids"] == ["gsm8k/test/0"]
    assert "10 words" in found["rule"]
    other = task_overlap(ChainSum(), Gsm8k(path=str(tmp_path)))
    assert (other["exact"], other["num_test"], "disjoint" in other) == (0, 22, False)


def test_a_task_that_makes_its_problems_is_disjoint_and_compared_all_the_same() -> None:
    found = task_overlap(ChainSum(num_terms=2, num_digits=1))
    assert found["disjoint"] is True
    assert "2000 training problems were compared" in found["why"]
    assert found["exact"] == 0
    same = task_overlap(ChainSum(num_terms=2, num_digits=1), ChainSum(num_terms=2, num_digits=1))
    assert same["disjoint"] is True
