"""The search index in the database: passages, messages, memories and documents."""
