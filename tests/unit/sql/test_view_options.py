from __future__ import annotations

from dataclasses import fields, replace

import pytest

from headwater.errors import InvalidOption
from headwater.sql.option_table import Option
from headwater.sql.view_options import (
    VIEW_OPTIONS,
    change_view_options,
    check_view_options,
    parse_view_options,
    render_view_options,
    view_notices,
    view_option,
)
from headwater.types import ViewOptions


def test_the_table_has_every_option_once_and_in_order() -> None:
    names = [each.name for each in VIEW_OPTIONS]
    assert ["mode", "method", *names[1:]] == [each.name for each in fields(ViewOptions)]
    assert names[0] == "refresh"


@pytest.mark.parametrize("each", VIEW_OPTIONS, ids=lambda each: each.name)
def test_every_option_is_documented_and_takes_its_default(each: Option) -> None:
    assert each.doc.endswith(".") and each.taken.endswith(".")
    assert each.read(each.render(each.default)) in (each.default, ("periodic", None))
    assert each.read(each.default) == each.default


def test_values_are_read_in_every_form() -> None:
    options = parse_view_options(
        {
            "refresh": " On_Query FULL ",
            "interval": "5 minutes",
            "max_staleness": 90,
            "compact": "OFF",
            "verify_every": "10",
            "verify_sample": 5,
            "compression": "gzip",
            "compression_level": "9",
            "target_file_size": "64 MB",
            "description": "ünïcödé 'quoted'",
        }
    )
    assert options == ViewOptions(
        mode="on_query",
        method="full",
        interval=300.0,
        max_staleness=90.0,
        compact="off",
        verify_every=10,
        verify_sample=5,
        compression="gzip",
        compression_level=9,
        target_file_size=64 * 1024**2,
        description="ünïcödé 'quoted'",
    )
    assert parse_view_options({}) == ViewOptions()


@pytest.mark.parametrize(
    ("value", "mode", "method"),
    [
        ("immediate", "immediate", "auto"),
        ("incremental", "periodic", "incremental"),
        ("full", "periodic", "full"),
        ("auto", "periodic", "auto"),
        ("manual, full", "manual", "full"),
        ("full manual", "manual", "full"),
        (["continuous", "incremental"], "continuous", "incremental"),
        (("on_query", "auto"), "on_query", "auto"),
    ],
)
def test_refresh_names_a_mode_a_method_or_both(value: object, mode: str, method: str) -> None:
    assert parse_view_options({"refresh": value}).refresh == (mode, method)


@pytest.mark.parametrize(
    "value", ["", "sometimes", "manual, periodic", "full, auto", "manual manual", 5, None, [], [5], {"mode": "manual"}]
)
def test_what_refresh_does_not_take(value: object) -> None:
    with pytest.raises(InvalidOption, match='option "refresh" does not take') as caught:
        parse_view_options({"refresh": value})
    assert caught.value.detail and caught.value.detail.startswith(view_option("refresh").taken)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval", 0),
        ("interval", "1 month"),
        ("interval", "soon"),
        ("max_staleness", -1),
        ("max_staleness", "366 days"),
        ("compact", "yes"),
        ("verify_every", -1),
        ("verify_every", 1.5),
        ("verify_sample", 0),
        ("compression", "lzo"),
        ("compression_level", 23),
        ("target_file_size", 1),
        ("emit", "now"),
        ("into_topic", "No"),
        ("into_kafka", "topic"),
        ("late", "never"),
        ("trigger", "2 days"),
        ("description", "\0"),
    ],
)
def test_a_wrong_value_names_its_option(name: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=f'option "{name}" does not take') as caught:
        parse_view_options({name: value})
    assert caught.value.data["option"] == name


def test_a_change_leaves_the_rest_as_it_was() -> None:
    before = ViewOptions(mode="immediate", method="incremental", compression="gzip", compression_level=9, interval=5.0)
    assert change_view_options(before, {}) == before
    assert change_view_options(before, {"refresh": "full"}) == replace(before, method="full")
    assert change_view_options(before, {"refresh": "manual"}) == replace(before, mode="manual")
    assert change_view_options(before, {"compact": "off"}) == replace(before, compact="off")


def test_an_interval_alone_makes_a_view_periodic() -> None:
    manual = ViewOptions(mode="manual", method="full")
    assert change_view_options(manual, {"interval": 5}) == ViewOptions(mode="periodic", method="full", interval=5.0)
    both = change_view_options(manual, {"interval": 5, "refresh": "on_query"})
    assert both == ViewOptions(mode="on_query", method="full", interval=5.0)
    assert change_view_options(manual, {"interval": 5, "refresh": "incremental"}).mode == "periodic"


def test_another_codec_forgets_the_level_of_the_old_one() -> None:
    gzip = ViewOptions(compression="gzip", compression_level=9)
    assert change_view_options(gzip, {"compression": "snappy"}).compression_level is None
    assert change_view_options(gzip, {"compression": "zstd", "compression_level": 3}).compression_level == 3
    with pytest.raises(InvalidOption, match='option "compression_level"'):
        change_view_options(gzip, {"compression_level": 22})


def test_an_unknown_option_gets_a_suggestion() -> None:
    with pytest.raises(InvalidOption, match='option "max_stalenes" is not known') as caught:
        parse_view_options({"max_stalenes": 1})
    assert caught.value.hint == 'Did you mean "max_staleness"?'
    with pytest.raises(InvalidOption, match='option "mode" is not known'):
        parse_view_options({"mode": "manual"})


def test_options_built_in_python_are_checked_too() -> None:
    assert check_view_options(ViewOptions(mode="manual", interval=1.0)) == ViewOptions(mode="manual", interval=1.0)
    with pytest.raises(InvalidOption):
        check_view_options(ViewOptions(mode="never"))  # type: ignore[arg-type]


def test_rendering_can_leave_out_defaults() -> None:
    assert render_view_options(ViewOptions(), changed_only=True) == {}
    assert render_view_options(ViewOptions(method="full"), changed_only=True) == {"refresh": "periodic, full"}
    assert render_view_options(ViewOptions())["refresh"] == "periodic"


def test_options_without_effect_are_noticed() -> None:
    assert view_notices(ViewOptions()) == ()
    assert view_notices(ViewOptions(mode="on_query", max_staleness=5, verify_every=3, verify_sample=9)) == ()
    assert len(view_notices(ViewOptions(mode="manual", interval=5, max_staleness=5, verify_sample=9))) == 3


@pytest.mark.parametrize(
    "values",
    [{"emit": "close"}, {"into_topic": "x"}, {"into_kafka": "local/t"}, {"late": "keep"}, {"trigger": 1}],
    ids=lambda values: next(iter(values)),
)
def test_what_a_stream_does_needs_one(values: dict[str, object]) -> None:
    (name,) = values
    with pytest.raises(InvalidOption, match=f'option "{name}" is for continuous views') as caught:
        parse_view_options(values)
    assert caught.value.data["option"] == name
    assert caught.value.hint and "refresh = 'continuous'" in caught.value.hint
    kept = parse_view_options({"refresh": "continuous", **values})
    assert kept.mode == "continuous"
    with pytest.raises(InvalidOption, match=f'option "{name}" is for continuous views') as caught:
        change_view_options(kept, {"refresh": "manual"})
    assert caught.value.data["option"] == "refresh"
    default = {name: view_option(name).default}
    assert change_view_options(kept, {"refresh": "manual", **default}) == ViewOptions(mode="manual")


def test_results_go_to_one_place() -> None:
    topic = parse_view_options({"refresh": "continuous", "into_topic": "x"})
    with pytest.raises(InvalidOption, match="contradict"):
        change_view_options(topic, {"into_kafka": "local/t"})
    assert change_view_options(topic, {"into_kafka": "local/t", "into_topic": ""}).into_kafka == "local/t"


def test_settings_of_a_client_need_one() -> None:
    settings = "linger.ms=5, compression.type=zstd"
    with pytest.raises(InvalidOption, match='option "kafka_options" has no effect without "into_kafka"') as caught:
        parse_view_options({"refresh": "continuous", "kafka_options": settings})
    assert caught.value.data["option"] == "kafka_options"
    sent = parse_view_options({"refresh": "continuous", "into_kafka": "local/t", "kafka_options": settings})
    assert sent.kafka_options == (("linger.ms", "5"), ("compression.type", "zstd"))
    assert parse_view_options(render_view_options(sent)) == sent
    with pytest.raises(InvalidOption, match="kafka_options"):
        change_view_options(sent, {"into_kafka": ""})
    with pytest.raises(InvalidOption, match="kafka_options") as secret:
        parse_view_options({"refresh": "continuous", "into_kafka": "local/t", "kafka_options": "sasl.password=x"})
    assert "is not a setting that statements may make" in str(secret.value.detail)
