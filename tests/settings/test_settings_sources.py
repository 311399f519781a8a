"""Sources of settings: precedence, origins, and error messages for invalid values."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidConfiguration
from quire.settings import Settings
from quire.settings.sources import SettingsLayer, load_settings, parse_options, read_environment, read_settings_file
from quire.settings.toml_template import render_settings_template, to_toml


def test_the_later_source_holds_and_each_value_says_where_it_is_from(tmp_path: Path):
    file = tmp_path / "quire.toml"
    file.write_text('model = "gpt-4"\nreserved_response_tokens = 100\n[shares]\nrecall = 0.5\n')
    environ = {"QUIRE_MODEL": "claude-sonnet-4-5", "QUIRE_CONTEXT_MANAGEMENT_ENABLED": "false", "QUIRE_UNKNOWN": "1"}
    result = load_settings(
        [read_settings_file(file), *read_environment(environ), parse_options(["reserved_response_tokens=7"])]
    )
    settings = result.settings
    assert (settings.model, settings.reserved_response_tokens) == ("claude-sonnet-4-5", 7)
    assert (settings.context_management_enabled, settings.shares) == (False, {"recall": 0.5})
    assert result.origins == {
        "model": "QUIRE_MODEL",
        "reserved_response_tokens": "the command line",
        "shares": str(file),
        "context_management_enabled": "QUIRE_CONTEXT_MANAGEMENT_ENABLED",
    }


def test_without_any_source_there_are_the_defaults(tmp_path: Path):
    assert load_settings([read_settings_file(tmp_path / "none.toml"), *read_environment({})]) == (Settings(), {})


def test_headers_of_sessions_add_to_the_known_ones():
    settings = Settings(session_headers={"X-LibreChat-Conversation": "librechat", "thread-id": ""})
    assert settings.session_headers["x-librechat-conversation"] == "librechat"
    assert (settings.session_headers["x-claude-code-session-id"], settings.session_headers["thread-id"]) == (
        "claude-code",
        "",
    )
    assert Settings.model_validate(settings.model_dump()) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modell": "x"}, "'modell', which is not a setting; did you mean 'model'?"),
        ({"zzz": 1}, "`quire config list`"),
        ({"input_price": 1.0}, r"a file sets 'input_price', which is no setting any more; .*\[models\.\"\*\"\]"),
        ({"context_threshold": 2}, r"context_threshold \(a file\): input should be less than or equal to 1"),
        ({"shares": {"nowhere": 0.1}}, "shares"),
        (
            {"models": {"gpt-4o": {"windw": 1}}},
            r"models.gpt-4o.windw \(a file\): unknown field; did you mean 'window'?",
        ),
        ({"models": {"m": {"zzz": 1}}}, "models.m.zzz .*the fields are window, output_limit, tokenizer, input_price"),
        ({"models": {"m": {"window": 0}}}, "models.m.window .*greater than 0"),
        ({"models": {"m": {"input_price": 1}}}, r"models.m \(a file\): set input_price and output_price together"),
        ({"models": {"m": {"cached_input_price": 1}}}, "cached_input_price needs input_price"),
        (
            {"models": {"m": {"wire_format": "telex"}}},
            "models.m.wire_format .*'chat', 'messages', 'responses' or 'gemini'",
        ),
        ({"upstreams": {"m": {"base_url": "", "context_limit": 1}}}, "upstreams.m.context_limit .*the fields are"),
        (
            {"upstreams": {"m": {"base_url": "", "speaks": ["telex"]}}},
            "upstreams.m.speaks.0 .*'chat', 'messages', 'responses' or",
        ),
        ({"upstreams": {"m": {"base_url": "", "speaks": []}}}, "upstreams.m.speaks .*at least 1 item"),
        (
            {"upstreams": {"m": {"base_url": "", "credentials": "client", "api_key_env": "K"}}},
            r'upstreams.m \(a file\): credentials = "client" excludes api_key_env',
        ),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(values: dict[str, object], message: str):
    with pytest.raises(InvalidConfiguration, match=message):
        load_settings([SettingsLayer("a file", values)])


def test_a_broken_file_and_a_broken_option_say_so(tmp_path: Path):
    broken = tmp_path / "quire.toml"
    broken.write_text("model = ")
    with pytest.raises(InvalidConfiguration, match="not valid TOML"):
        read_settings_file(broken)
    with pytest.raises(InvalidConfiguration, match="write it as name=value"):
        parse_options(["model"])
    with pytest.raises(InvalidConfiguration, match="neither plain text nor valid JSON"):
        parse_options(["shares={recall"])


def test_the_written_file_explains_every_setting_and_sets_what_was_chosen():
    text = render_settings_template({"model": 'a "quoted" name', "shares": {"recall": 0.3}})
    assert load_settings([SettingsLayer("the file", tomllib.loads(text))]).settings == Settings(
        model='a "quoted" name', shares={"recall": 0.3}
    )
    for name, field in Settings.model_fields.items():
        assert field.description
        assert f"# {field.description}\n" in text
        assert f"{name} =" in text


def test_a_table_of_models_is_read_from_toml_and_from_a_variable():
    models = {"gpt-4o": {"window": 4_096, "tokenizer": "qwen3"}, "claude-*": {"output_limit": 512}}
    text = '[models."gpt-4o"]\nwindow = 4096\ntokenizer = "qwen3"\n[models."claude-*"]\noutput_limit = 512\n'
    settings = load_settings([SettingsLayer("a file", tomllib.loads(text))]).settings
    assert settings.model_dump(exclude_none=True)["models"] == models
    assert load_settings(read_environment({"QUIRE_MODELS": json.dumps(models)})).settings == settings
    written = render_settings_template({"models": settings.model_dump()["models"]})
    assert load_settings([SettingsLayer("written", tomllib.loads(written))]).settings == settings


def test_a_later_layer_replaces_the_models_that_it_names_and_no_others():
    user = SettingsLayer("user", {"models": {"a": {"window": 1, "output_limit": 9}, "b": {"window": 2}}})
    project = SettingsLayer("project", {"models": {"a": {"window": 3}}})
    models = load_settings([user, project]).settings.models
    assert {name: (entry.window, entry.output_limit) for name, entry in models.items()} == {
        "a": (3, None),
        "b": (2, None),
    }


@given(
    st.recursive(
        st.booleans() | st.integers() | st.text() | st.just("\x7f"),
        lambda inner: st.lists(inner, max_size=3),
        max_leaves=5,
    )
)
def test_values_come_back_as_they_were_written(value: object):
    assert tomllib.loads(f"x = {to_toml(value)}") == {"x": value}
