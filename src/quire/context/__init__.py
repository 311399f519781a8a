"""Everything in a request other than its messages: rules, references, imports, memory, tools and recall."""
