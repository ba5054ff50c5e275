from __future__ import annotations

from dataclasses import fields

import pytest

from headwater.errors import InvalidOption
from headwater.sql.options import OPTIONS, check_options, option, parse_options, render_options
from headwater.types import TopicOptions


def test_the_table_has_every_option_once_and_in_order() -> None:
    assert [each.name for each in OPTIONS] == [each.name for each in fields(TopicOptions)]


@pytest.mark.parametrize("each", OPTIONS, ids=lambda each: each.name)
def test_every_option_is_documented_and_takes_its_default(each: object) -> None:
    found = option(each.name)  # type: ignore[attr-defined]
    assert found.doc.endswith(".") and found.taken.endswith(".")
    assert found.read(found.render(found.default)) == found.default
    assert found.read(found.default) == found.default


def test_values_are_read_in_every_form() -> None:
    options = parse_options(
        {
            "compression": " GZIP ",
            "compression_level": "9",
            "target_file_size": "50 GB",
            "rotation_timeout": 60,
            "batch_size": "500",
            "commit_interval": "250 ms",
            "on_invalid": "dead_letter",
            "dedup_key": ["a", "b"],
            "description": "ünïcödé 'quoted'",
        }
    )
    assert options == TopicOptions(
        compression="gzip",
        compression_level=9,
        target_file_size=50 * 1024**3,
        rotation_timeout=60.0,
        batch_size=500,
        commit_interval=0.25,
        on_invalid="dead_letter",
        dedup_key=("a", "b"),
        description="ünïcödé 'quoted'",
    )
    assert parse_options({"dedup_key": " a,b "}).dedup_key == ("a", "b")
    assert parse_options({"dedup_key": ""}).dedup_key == ()
    assert parse_options({"compression_level": None}).compression_level is None
    assert parse_options({}) == TopicOptions()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target_file_size", 50 * 1024**3 + 1),
        ("target_file_size", 1024**2 - 1),
        ("rotation_timeout", 0),
        ("batch_size", 0),
        ("batch_size", True),
        ("batch_size", 1.0),
        ("batch_size", "1_000"),
        ("batch_size", "٣"),
        ("batch_size", 10**30),
        ("compression", "lzo"),
        ("compression", None),
        ("on_invalid", "ignore"),
        ("dedup_key", "a,,b"),
        ("dedup_key", "_offset"),
        ("dedup_key", [1]),
        ("dedup_key", {"a": 1}),
        ("description", "x" * 4097),
        ("description", "\0"),
        ("description", "\ud800"),
        ("description", 3),
    ],
)
def test_a_wrong_value_says_what_is_taken(name: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=f'option "{name}" does not take') as caught:
        parse_options({name: value})
    assert caught.value.detail and caught.value.detail.startswith(option(name).taken)
    assert caught.value.data["option"] == name


@pytest.mark.parametrize(
    ("codec", "level", "taken"),
    [
        ("zstd", 1, True),
        ("zstd", 22, True),
        ("zstd", 0, False),
        ("zstd", 23, False),
        ("gzip", 9, True),
        ("gzip", 10, False),
        ("brotli", 0, True),
        ("brotli", 12, False),
        ("none", 1, False),
        ("snappy", 1, False),
        ("lz4", 1, False),
        ("lz4", None, True),
    ],
)
def test_levels_depend_on_the_codec(codec: str, level: int | None, taken: bool) -> None:
    values = {"compression_level": level, "compression": codec}
    if taken:
        assert parse_options(values).compression_level == level
    else:
        with pytest.raises(InvalidOption, match='option "compression_level"'):
            parse_options(values)


def test_an_unknown_option_gets_a_suggestion() -> None:
    with pytest.raises(InvalidOption, match='option "rotation_time" is not known') as caught:
        parse_options({"rotation_time": 1})
    assert caught.value.hint == 'Did you mean "rotation_timeout"?'


def test_options_built_in_python_are_checked_too() -> None:
    assert check_options(TopicOptions(dedup_key=("a",))) == TopicOptions(dedup_key=("a",))
    with pytest.raises(InvalidOption):
        check_options(TopicOptions(batch_size=-1))


def test_rendering_can_leave_out_defaults() -> None:
    assert render_options(TopicOptions(), changed_only=True) == {}
    assert render_options(TopicOptions(batch_size=5), changed_only=True) == {"batch_size": "5"}
    assert parse_options(render_options(TopicOptions())) == TopicOptions()
    assert set(render_options(TopicOptions())) == {each.name for each in OPTIONS}


def test_huge_numbers_are_refused_like_others() -> None:
    for name in ("batch_size", "target_file_size", "compression_level", "rotation_timeout"):
        with pytest.raises(InvalidOption, match='"a huge number"'):
            parse_options({name: 10**5000})
