"""Every form of a time, and every form that is refused."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.errors import InvalidTimestampError
from tiered.times import MAX_TIME_MS, format_time, parse_time

NOW = 1_700_000_000_000
DAY = 86_400_000


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (1_357_016_400_000, 1_357_016_400_000),
        ("1357016400000", 1_357_016_400_000),
        ("999", 999),
        (631_151_999, 631_151_999),
        (4_102_444_800, 4_102_444_800),
        ("1970-01-16T16:56:56.400Z", 1_357_016_400),
        ("now", NOW),
        (" now ", NOW),
        ("-3d", NOW - 3 * DAY),
        ("3d", NOW - 3 * DAY),
        ("7d", NOW - 7 * DAY),
        ("+1h", NOW + 3_600_000),
        ("now-1w", NOW - 7 * DAY),
        ("now+5m", NOW + 300_000),
        ("1h30m", NOW - 5_400_000),
        ("250ms", NOW - 250),
        ("10s", NOW - 10_000),
        ("900000d", 0),
        ("2013-01-01", 1_356_998_400_000),
        ("2013-01-01T05:00:00Z", 1_357_016_400_000),
        ("2013-01-01 05:00:00+00:00", 1_357_016_400_000),
        ("2013-01-01T07:00:00+02:00", 1_357_016_400_000),
        ("2013-01-01T05:00:00.250Z", 1_357_016_400_250),
        ("2013-01-01T05:00:00.250999Z", 1_357_016_400_250),
        (dt.datetime(2013, 1, 1, 5, tzinfo=dt.UTC), 1_357_016_400_000),
        (dt.datetime(2013, 1, 1, 0, tzinfo=dt.timezone(dt.timedelta(hours=-5))), 1_357_016_400_000),
    ],
)
def test_known_forms(value: int | str | dt.datetime, expected: int) -> None:
    assert parse_time(value, now_ms=NOW) == expected


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (True, "True is not a time"),
        (1.5, "a float is not a time"),
        (None, "a NoneType is not a time"),
        (-1, "lies before 1970"),
        (631_152_000, "631152000 can only be seconds"),
        (1_357_016_400, "1357016400 can only be seconds"),
        ("1357016400", "1357016400 can only be seconds"),
        (4_102_444_799, "4102444799 can only be seconds"),
        (1_700_000_000_000_000, "lies after the year 9999"),
        ("1700000000000000", "lies after the year 9999"),
        ("", "an empty text"),
        ("   ", "an empty text"),
        ("yesterday", "'yesterday' is not a time"),
        ("2013", "may be a year or milliseconds"),
        ("3x", "'3x' is not a time"),
        ("3", None),
        ("-3", "'-3' is not a time"),
        ("now3d", "'now3d' is not a time"),
        ("2013-13-01", "is not a time"),
        ("2013-01-01T05:00:00", "has no time zone"),
        ("2013-01-01 05:00", "has no time zone"),
        ("1969-12-31T23:59:59Z", "lies before 1970"),
        ("9" * 65, "65 characters"),
        ("٣d", "is not a time"),
        (dt.datetime(2013, 1, 1), "has no time zone"),
    ],
)
def test_refusals_are_one_sentence_with_a_hint(value: object, sentence: str | None) -> None:
    if sentence is None:
        assert parse_time(value, now_ms=NOW) == 3  # type: ignore[arg-type]  # a short number is milliseconds
        return
    with pytest.raises(InvalidTimestampError) as caught:
        parse_time(value, now_ms=NOW)  # type: ignore[arg-type]  # wrong types are the point
    assert sentence in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("timestamp", "text"),
    [(0, "1970-01-01T00:00:00Z"), (1_357_016_400_250, "2013-01-01T05:00:00.250Z"), (-1, "-"), (MAX_TIME_MS + 1, "-")],
)
def test_format(timestamp: int, text: str) -> None:
    assert format_time(timestamp) == text


@given(st.integers(min_value=0, max_value=MAX_TIME_MS))
def test_what_is_printed_is_read_back(timestamp: int) -> None:
    assert parse_time(format_time(timestamp), now_ms=NOW) == timestamp


@given(st.text(max_size=80))
def test_no_text_gives_anything_but_a_time_or_the_typed_error(text: str) -> None:
    try:
        result = parse_time(text, now_ms=NOW)
    except InvalidTimestampError:
        return
    assert 0 <= result <= MAX_TIME_MS
