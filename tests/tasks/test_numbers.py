"""Reading numbers: equal values get equal keys, others never do, and two answers are not one."""

import pytest

from tasks.parts.numbers import is_number, last_number, plain, stated_number


@pytest.mark.parametrize(
    ("span", "key"),
    [
        ("29", "29"),
        ("+29", "29"),
        ("029", "29"),
        ("$29.00", "29"),
        ("29.", "29"),
        ("...29", "29"),
        ("Rs.500", "500"),
        ("Rs. 500", "500"),
        ("29 dollars", "29"),
        ("29kg", "29"),
        ("27 m3", "27"),
        ("25%", "25"),
        ("€29", "29"),
        ("50¢", "50"),
        (".5", "1/2"),
        ("0.75", "3/4"),
        ("3/4", "3/4"),
        ("75/100", "3/4"),
        ("2 1/2", "5/2"),
        ("-2 1/2", "-5/2"),
        ("70,000", "70000"),
        ("1,234,567.50", "2469135/2"),
        ("-5", "-5"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        ("1e5", "100000"),
        ("2.5E-1", "1/4"),
        ("x = 5", "5"),
        ("9*2 = 18", "18"),
        ("5 =", "5"),
        ("18 dollars in 7 days", "18"),
        ("12 apples, which is 3 more", "12"),
        ("5 (5 apples)", "5"),
    ],
)
def test_plain_forms(span: str, key: str):
    assert stated_number(plain(span)) == key


@pytest.mark.parametrize(
    ("span", "key"),
    [
        ("\u22125", "-5"),
        ("\u20135", "-5"),
        ("\uff0d\uff15", "-5"),
        ("\uff17\uff10\uff0c\uff10\uff10\uff10", "70000"),
        ("\u0661\u0662", "12"),
        ("\u0661\u066b\u0665", "3/2"),
        ("\u096a\u0968", "42"),
        ("70\u00a0000", "70000"),
        ("70\u202f000", "70000"),
        ("1\u2009234\u2009567", "1234567"),
        ("5\u00a0apples", "5"),
        ("\u00bd", "1/2"),
        ("2\u00bd", "5/2"),
        ("2 \u00bd", "5/2"),
        ("3\u20444", "3/4"),
        ("27 m\u00b3", "27"),
        ("5\u00b2", "25"),
        ("4\u200b2", "42"),
    ],
)
def test_unicode_forms_equal_their_ascii_forms(span: str, key: str):
    """NFKC alone makes 21/2 of 2½, 52 of 5², and leaves the minus sign and Arabic-Indic digits."""
    assert stated_number(plain(span)) == key


@pytest.mark.parametrize(
    ("span", "key"),
    [
        (r"\$70{,}000", "70000"),
        (r"32,\!348", "32348"),
        (r"32\,348", "32348"),
        (r"\frac{3}{4}", "3/4"),
        (r"2\frac{1}{2}", "5/2"),
        (r"-\dfrac{ 1 }{ 2 }", "-1/2"),
        (r"18\text{ dollars}", "18"),
        (r"\text{Total: } 18", "18"),
        (r"\mathbf{18}", "18"),
        (r"25\%", "25"),
        (r"\(18\)", "18"),
        ("**73**", "73"),
        ("`73`", "73"),
    ],
)
def test_markup_around_a_number_is_dropped(span: str, key: str):
    assert stated_number(plain(span)) == key


@pytest.mark.parametrize(
    "span",
    [
        "5 and 6",
        "5 or 6",
        "5, 6",
        "5,6",
        "5 6",
        "5; 6",
        "5 apples or 6 apples",
        "5 apples or maybe 6",
        "5 apples, 6 pears",
        "5 to 6",
        "5-6",
        "5 - 6",
        "9*2",
        "9 x 2",
        "9 times 2",
        "12:00",
        "4 10/3",
        "1.2.3",
        "3/4/2024",
        "5/0",
        r"\frac{1}{2}\frac{1}{3}",
        "1e999999999",
        "9" * 101,
    ],
)
def test_what_is_not_one_number_is_an_answer_that_equals_none(span: str):
    key = stated_number(plain(span))
    assert key is not None
    assert not is_number(key)


@pytest.mark.parametrize("span", ["", "no digits", ".", ",", "...", "-", "$", "x2", "m^3", "H_2O", "²"])
def test_no_number(span: str):
    assert stated_number(plain(span)) is None


def test_close_is_not_equal():
    assert stated_number("120001") != stated_number("120000")
    assert stated_number("0.3333333333333333") != stated_number("1/3")
    assert len({stated_number(span) for span in ("0.5", "5", "50", "500", "5000")}) == 5


def test_a_minus_after_something_to_subtract_from_is_no_sign():
    assert last_number("200 - 130") == "130"
    assert last_number("200-130") == "130"
    assert last_number("(200)-130") == "130"
    assert last_number("$200-$130") == "130"
    assert last_number("a change of -130") == "-130"
    assert last_number("a change of (-$130)") == "-130"


def test_a_choice_of_last_numbers_is_no_number():
    assert last_number("it is 5 or 6") == "text:5 or 6"
    assert last_number("he buys 5 and she buys 6") == "6"
    assert last_number("it is 6 or 6") == "6"


def test_a_text_key_is_short_ascii():
    key = stated_number(plain("5 und \ud800 6 " + "\u00e9" * 200))
    assert key is not None
    assert key.isascii()
    assert len(key) <= 105
