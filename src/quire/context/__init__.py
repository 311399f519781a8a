"""What enters a request besides its messages: rules, references, imports, memory, tools, and what is recalled."""
