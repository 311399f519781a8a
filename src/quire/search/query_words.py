"""Words of a search query, each with the terms that it may have in the index."""

from quire.search.languages import detect_query_languages
from quire.search.tokenizer import split_words, tokenize_query_word, tokenize_word

MAX_QUERY_CHARS = 4_000
"""Characters of a query that are searched for, from its start."""
MAX_QUERY_WORDS = 32
"""Distinct words of a query that are looked up; later ones are ignored."""


def find_query_words(query: str) -> list[tuple[str, ...]]:
    """The distinct words of a query without stop words, each with its alternative terms.

    A run of a script without spaces is not a word: each of its bigrams counts as one.
    """
    query = query[:MAX_QUERY_CHARS]
    languages = detect_query_languages(query)
    words: dict[tuple[str, ...], None] = {}
    for word in split_words(query):
        terms = tokenize_query_word(word, languages)
        alternatives = [terms] if len(tokenize_word(word, languages[0])) == 1 else [(term,) for term in terms]
        words |= dict.fromkeys(each for each in alternatives if each)
    return list(words)[:MAX_QUERY_WORDS]
