"""Text that can be encoded: UTF-8, and with it every store, provider and tokenizer, rejects lone surrogates."""


def replace_lone_surrogates(text: str) -> str:
    """Replaces lone surrogates, which remain where text was cut within a character, by U+FFFD; joins pairs."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # The way through UTF-16 joins the two surrogates of a pair into one character.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
