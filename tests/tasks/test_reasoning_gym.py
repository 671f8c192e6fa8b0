"""Reasoning Gym: items of all generators, splits that share none, golds that are right, answers that cannot hang it."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bench.catalog import load_task_class
from bench.problems import problem_of
from tasks.parts.gym import split_of
from tasks.parts.problem import Problem, Split
from tasks.parts.selftest import self_test
from tasks.parts.workers import run_all
from tasks.reasoning_gym import ReasoningGym

SPLITS: tuple[Split, ...] = ("train", "validation", "test")
DEFAULT = ("leg_counting", "gcd", "knights_knaves", "mini_sudoku", "spell_backward", "syllogism")
ALL = """
    ab acre advanced_geometry aiw arc_1d arc_agi base_conversion basic_arithmetic bf binary_alternation
    binary_matrix bitwise_arithmetic boxnet caesar_cipher calendar_arithmetic chain_sum circuit_logic codeio
    coin_flip color_cube_rotation complex_arithmetic composite count_bits count_primes countdown course_schedule
    cryptarithm decimal_arithmetic decimal_chain_sum dice emoji_mystery family_relationships figlet_font
    fraction_simplification futoshiki game_of_life game_of_life_halting gcd graph_color group_anagrams
    gsm_symbolic intermediate_integration isomorphic_strings jugs kakurasu knight_swap knights_knaves
    largest_island lcm leg_counting letter_counting letter_jumble list_functions mahjong_puzzle manipulate_matrix
    maze mini_sudoku modulo_grid n_queens needle_haystack number_filtering number_format number_sequence
    number_sorting palindrome_generation palindrome_partitioning path_star polynomial_equations
    polynomial_multiplication pool_matrix power_function prime_factorization products propositional_logic puzzle24
    quantum_lock ransom_note rearc rectangle_count rotate_matrix rotten_oranges rubiks_cube rush_hour
    self_reference sentence_reordering shortest_path simple_equations simple_geometry simple_integration sokoban
    spell_backward spiral_matrix string_insertion string_manipulation string_splitting string_synthesis sudoku
    survo syllogism time_intervals tower_of_hanoi tsumego word_ladder word_sequence_reversal word_sorting
    zebra_puzzles
"""
GENERATORS = ALL.split()
OPTIONS = {"composite": {"datasets": [{"name": "leg_counting"}, {"name": "gcd", "weight": 2.0}]}}
NO_GOLD = {"boxnet", "rush_hour"}
"""The library checks answers to these and knows none."""
REPEATING = {"coin_flip", "tower_of_hanoi", "intermediate_integration"}
"""Few or short questions: one may come twice within a split."""


def task_of(generator: str) -> ReasoningGym:
    return ReasoningGym(name=f"reasoning_gym/{generator}", options=OPTIONS.get(generator, {}))


def with_answer(answer: str, entry: dict[str, object]) -> tuple[Problem, str, bool]:
    return Problem(id="x", prompt="", gold="", columns={"entry": entry}), f"<answer>{answer}</answer>", False


@pytest.mark.slow
def test_the_list_of_generators_is_the_librarys():
    script = "from reasoning_gym.factory import DATASETS; print(*sorted(DATASETS))"
    listed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert listed == GENERATORS


@pytest.mark.parametrize(
    "generator", [name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in GENERATORS]
)
def test_a_generator_makes_items_whose_golds_are_right(generator: str):
    task = task_of(generator)
    problems = {split: [task.generate(split, index) for index in range(3)] for split in SPLITS}
    everything = [problem for split in SPLITS for problem in problems[split]]
    assert self_test(task, everything) == []
    assert all(split_of(p.columns["entry"]["question"]) == split for split in SPLITS for p in problems[split])
    questions = {split: {problem.question for problem in problems[split]} for split in SPLITS}
    assert len(set().union(*questions.values())) == sum(map(len, questions.values())), "an item is in two splits"
    assert generator in REPEATING or all(len(questions[split]) == 3 for split in SPLITS)
    assert {bool(problem.gold) for problem in everything} == {generator not in NO_GOLD}


@pytest.mark.slow
@pytest.mark.parametrize("generator", GENERATORS)
def test_a_second_worker_makes_the_same_item(generator: str):
    """It has made other items before, so that nothing but the item's own seed can have had a say."""
    task = task_of(generator)
    job = ("make", generator, json.dumps(task.options, sort_keys=True), "train", 1)
    (outcome,) = run_all("tasks.parts.gym:call", [job], limit_seconds=120, workers=1)
    problem = task.generate("train", 1)
    assert outcome.value == (problem.gold, problem.columns["entry"])


@pytest.mark.slow
def test_another_process_makes_the_same_items():
    task = task_of("knights_knaves")
    script = (
        "from tasks.reasoning_gym import ReasoningGym\n"
        "task = ReasoningGym(name='reasoning_gym/knights_knaves')\n"
        "print([task.generate(split, 5) for split in ('train', 'test')])"
    )
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", script]
    other = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    assert other == str([task.generate(split, 5) for split in ("train", "test")])


def test_neighbouring_items_are_not_a_shifted_copy():
    """The library seeds item i with seed + i, so that two data sets with neighbouring seeds share all items but one."""
    task = task_of("leg_counting")
    questions = [task.generate("train", index).question for index in range(40)]
    assert len(set(questions)) == 40


def test_a_problem_is_found_again_by_its_id():
    task = task_of("gcd")
    problem = task.generate("test", 7)
    assert problem.id == "reasoning_gym/gcd/test/7"
    assert problem_of(task, problem.id) == problem


def test_options_change_the_items():
    small = ReasoningGym(name="reasoning_gym/leg_counting", options={"min_animals": 1, "max_animals": 1})
    assert "," not in (small.generate("train", 0).question or "").partition("you have")[2]
    assert hash(small) != hash(task_of("leg_counting"))


def test_a_generator_without_enough_items_says_so():
    task = ReasoningGym(name="reasoning_gym/count_primes", options={"min_n": 1, "max_n": 1})
    failures: list[str] = []
    for split in SPLITS:
        try:
            task.generate(split, 0)
        except ValueError as error:
            failures.append(str(error))
    assert len(failures) == 2, "one item belongs to one split"
    assert all("too few distinct items for a" in failure for failure in failures)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reasoning_gym/leg_countng", {}, "no generator 'leg_countng'; did you mean reasoning_gym/leg_counting?"),
        ("reasoning_gym", {}, "must name a generator, such as reasoning_gym/leg_counting"),
        ("reasoning_gym/", {}, "must name a generator"),
        ("reasoning_gym/gcd", {"max_val": 9}, "gcd has no option 'max_val'; did you mean max_value?"),
        ("reasoning_gym/gcd", {"seed": 9}, "gcd has no option 'seed'"),
        ("reasoning_gym/gcd", {"max_value": -1}, "gcd refuses its options: AssertionError"),
        ("reasoning_gym/composite", {}, "composite refuses its options"),
    ],
)
def test_a_mistake_is_named_before_anything_runs(name: str, options: dict[str, object], message: str):
    task_class = load_task_class(name)
    with pytest.raises(ValueError, match=message.replace("?", "\\?")):
        task_class.model_validate({"name": name, "options": options})


@pytest.mark.parametrize(
    ("completion", "truncated", "correct", "method"),
    [
        ("<think>7</think>It is\n<answer> 66 </answer>", False, True, "tag"),
        ("<answer>1</answer> no, <answer>66</answer>", False, True, "tag"),
        ("so \\boxed{66} legs", False, True, "box"),
        ("Adding up:\n66", False, True, "line"),
        ("Adding up:\n66", True, False, "none"),
        ("<answer>66</answer> and", True, True, "tag"),
        ("<answer>67</answer>", False, False, "tag"),
        ("<think><answer>66</answer>", False, False, "none"),
        ("", False, False, "none"),
        ("<answer>" + "6" * 1_000_000 + "</answer>", False, False, "tag"),
    ],
)
def test_where_the_answer_is_found(completion: str, truncated: bool, correct: bool, method: str):
    problem = Problem(
        id="x", prompt="", gold="66", columns={"entry": {"question": "?", "answer": "66", "metadata": {}}}
    )
    grade = task_of("leg_counting").grade(problem, completion, truncated=truncated)
    assert (grade.correct, grade.method, grade.truncated) == (correct, method, truncated)


def test_a_partial_score_is_wrong():
    """The library gives 66/70 of a point to an answer that holds the right one."""
    grade = task_of("leg_counting").grade_all([with_answer("66 or so", {"answer": "66", "metadata": {}})])[0]
    assert grade.correct is False


def test_an_answer_that_breaks_the_scorer_is_wrong_and_one_of_many():
    task = task_of("game_of_life")
    problem = task.generate("train", 0)
    nonsense = ["[" * 5000, "[[1, 2], 3]", "\x00", "nan", "{}"]
    items = [(problem, f"<answer>{text}</answer>", False) for text in (*nonsense, problem.gold)]
    assert [grade.correct for grade in task.grade_all(items)] == [False] * len(nonsense) + [True]


@pytest.mark.slow
def test_an_answer_that_hangs_the_scorer_is_stopped():
    """The scorer of this generator evaluates an answer as an expression, powers of powers with it."""
    task = task_of("countdown")
    problem = task.generate("train", 0)
    grades = task.grade_all([(problem, "<answer>9**9**9**9</answer>", False), (problem, problem.gold, False)])
    assert [grade.correct for grade in grades] == [False, True]


@pytest.mark.parametrize(
    ("generator", "gold", "right", "wrong"),
    [
        ("game_of_life_halting", "False", ["False"], ["True", "maybe"]),
        ("coin_flip", "0.109375", ["0.109375", "7/64", "0.1094"], ["0", "0.1", "0.11", "1e400"]),
        ("gsm_symbolic", "69", ["69", "$69", "69.0"], ["-69", "169", "6.9"]),
        ("complex_arithmetic", "-5.0 + 7.0i", ["-5.0 + 7.0i", "-5+7i"], ["nan", "NaN", "5.0 + 7.0i"]),
    ],
)
def test_what_the_librarys_scorers_wrongly_accept_is_wrong(
    generator: str, gold: str, right: list[str], wrong: list[str]
):
    entry = {"question": "?", "answer": gold, "metadata": {"result": (-5.0, 7.0)}}
    grades = task_of(generator).grade_all([with_answer(text, entry) for text in (*right, *wrong)])
    assert [grade.correct for grade in grades] == [True] * len(right) + [False] * len(wrong)


def test_a_problem_made_elsewhere_gives_no_verdict():
    problem = Problem(id="x", prompt="", gold="66")
    assert task_of("leg_counting").grade(problem, "<answer>66</answer>").correct is None


@pytest.mark.slow
def test_it_works_off_the_main_thread():
    grades: list[bool | None] = []
    task = task_of("gcd")

    def work() -> None:
        problem = task.generate("train", 1)
        grades.append(task.grade(problem, task.stated(problem) or "").correct)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert grades == [True]


@pytest.mark.parametrize(("completion", "score"), [("<answer>1</answer>", 1.0), ("<answer>1</answer>!", 0.5), ("1", 0)])
def test_the_form_is_scored(completion: str, score: float):
    assert task_of("gcd").format_score(Problem(id="x", prompt="", gold=""), completion) == score


@pytest.mark.slow
def test_the_library_is_not_loaded_by_this_process_until_it_must_be():
    script = (
        "import sys\nfrom tasks.reasoning_gym import ReasoningGym\n"
        "ReasoningGym(name='reasoning_gym/gcd').generate('train', 0)\nassert 'reasoning_gym' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).resolve().parents[2], check=True)
