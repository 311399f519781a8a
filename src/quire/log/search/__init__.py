"""Full-text and vector search: tokenizer, inverted index, BM25, vectors, passages and recall segments."""
