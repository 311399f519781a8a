"""Native sessions of coding agents, written from the log: what one agent began, another continues.

`history` chooses the messages and brings them into a form that the agent takes; one module per agent writes them in its
format. `session` has the types they share, and the only function that touches the disk. The formats are those that
`quire.importers` reads.
"""
