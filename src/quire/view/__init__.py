"""What the model sees next, as pure functions: counting, budgets, strategies, layout, rendering, checks."""
