"""Pure functions that build the next model request: token counts, budgets, strategies, layout, rendering, checks."""
