"""Running turns in the database: which process runs one, and the events that other processes show."""
