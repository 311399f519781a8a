"""Search and recall over messages, documents and memories. Pure: bytes, numbers and texts in, numbers out.

`tokenizer` splits text into terms, and `segments` stores the terms, features and vectors of a run of messages.
`catalog` has all messages of a tenant, `index` the messages of one branch. `query` parses the question, and `ranker`
ranks either by relevance signals, as a list or for a budget. Nothing is imported here: only some of the modules need
numpy.
"""
