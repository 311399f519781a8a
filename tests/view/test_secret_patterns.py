"""Patterns of an organization's own secrets, and bodies that are masked by what changed in them."""

import json
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.log.secret_masker import SecretMasker
from quire.log.tenant_masker import mask_sent_body
from quire.model.secret_patterns import MAX_SECRET_CHARS, compile_secret_pattern
from quire.settings.schema import TenantMasking
from secret_samples import SecretGenerator, list_samples

MASKER = SecretMasker(TenantMasking(patterns={"badge": r"ACME-[0-9A-F]{16}", "case": r"case\.\d{2}[a-z]{4,8}"}))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("id ACME-0123456789ABCDEF.", "id ACME-…[masked badge]."),
        ("ACME-0123", "ACME-0123"),
        ("ACME-ACME-0123456789ABCDEF", "ACME-ACME-…[masked badge]"),
        ("ACME-0123\u200b456789ABCDEF", "ACME-…[masked badge]"),
        ('{"a":"case.12abcd\\n"}', '{"a":"case.…[masked case]\\n"}'),
        ("casex12abcd", "casex12abcd"),
    ],
)
def test_own_patterns_are_masked(text: str, masked: str):
    assert MASKER.mask_text(text) == masked
    assert MASKER.mask_text(masked) == masked


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        "ACME-",
        "AC[0-9]{8}",
        "ACME-[0-9]*",
        "ACME-[0-9]+",
        "ACME-[0-9]{8,}",
        "ACME-(a|b){8}",
        "ACME-.{8}",
        "ACME-[^a]{8}",
        "ACME-[z-a]{8}",
        "ACME-[0-9]{9,4}",
        f"ACME-[0-9]{{{MAX_SECRET_CHARS}}}",
        "ACME-[0-9]{8}$",
        "(?i)ACME-[0-9]{8}",
        "ÄÖÜ-[0-9]{8}",
    ],
)
def test_other_patterns_are_refused(pattern: str):
    with pytest.raises(ValueError, match=r"pattern|matches more"):
        compile_secret_pattern("badge", pattern)
    with pytest.raises(ValueError, match="patterns"):
        TenantMasking(patterns={"badge": pattern})


@pytest.mark.parametrize("kind", ["", "a" * 41, 'a"b', "a…[masked b"])
def test_names_that_would_break_a_mask_are_refused(kind: str):
    with pytest.raises(ValueError, match="name of a secret"):
        compile_secret_pattern(kind, "ACME-[0-9]{8}")


def test_a_hostile_text_takes_linear_time():
    """The time for four times the text is about four times as long, where every position begins a match that fails."""
    masker = SecretMasker(TenantMasking(patterns={"a": "aaa[a-z]{100,200}[a-z]{20,40}X", "b": "aaa[ab]{60}[0-9]{4}"}))

    def measure(length: int) -> float:
        text, started = "a" * length, time.process_time()
        masker.mask_text(text)
        return time.process_time() - started

    measure(1_000)
    assert measure(40_000) < 10 * max(measure(10_000), 0.001)


SAMPLES = [sample for seed in range(3) for sample in list_samples(seed)]


@settings(max_examples=30)
@given(
    st.randoms(use_true_random=False), st.lists(st.sampled_from(["append", "insert", "replace", "delete"]), max_size=6)
)
def test_a_body_that_is_masked_by_its_change_is_masked_like_the_whole(chooser: random.Random, changes: list[str]):
    def make_item() -> dict[str, str]:
        sample = chooser.choice(SAMPLES).text if chooser.random() < 0.6 else "ACME-0123456789ABCDEF"
        padding = "lorem ipsum " * chooser.choice([0, 3, 900])
        return {"role": "user", "content": f"{padding}{sample}\n{padding if chooser.random() < 0.5 else ''}"}

    items, base = [make_item() for _ in range(4)], None
    for change in ["append", *changes]:
        position = chooser.randrange(len(items))
        match change:
            case "insert":
                items.insert(position, make_item())
            case "replace":
                items[position] = make_item()
            case "delete" if len(items) > 1:
                items.pop(position)
            case _:
                items.append(make_item())
        content = json.dumps({"messages": items}, ensure_ascii=chooser.random() < 0.5).encode()
        base = mask_sent_body(MASKER, content, base)
        assert base.encode() == MASKER.mask_text(content.decode()).encode()


def test_a_body_that_is_not_text_stays_as_it_is():
    content = b'{"a": "\xff\xfe", "b": "ACME-0123456789ABCDEF"}'
    assert mask_sent_body(MASKER, content, None).encode() == content.replace(
        b"0123456789ABCDEF", "…[masked badge]".encode()
    )


def test_a_private_key_that_grows_is_masked_whole():
    """The change is within a secret that begins long before it."""
    lines = [SecretGenerator(3).chars(64) for _ in range(400)]
    base = None
    for count in (200, 300, 400):
        text = "x" * 9_000 + "-----BEGIN PRIVATE KEY-----\n" + "\n".join(lines[:count]) + "\n"
        base = mask_sent_body(MASKER, json.dumps(text).encode(), base)
        assert not any(line in base.encode().decode() for line in lines)
