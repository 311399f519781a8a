"""Adapters: agents of other frameworks have their messages in Quire's log. They translate and nothing else."""
