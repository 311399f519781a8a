"""Search and recall over messages, documents and memories. Pure: bytes, numbers and texts in, numbers out.

`tokenizer` splits text into terms, `segments` stores the terms, features and vectors of a run of messages, `catalog`
searches all messages of a tenant, `index` merges the segments of one branch, `query` parses the question, and `ranker`
ranks messages by relevance signals. Nothing is imported here: only some of the modules need numpy.
"""
