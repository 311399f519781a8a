"""Adapters: other libraries store their sessions in Quire's log. They translate and nothing else."""
