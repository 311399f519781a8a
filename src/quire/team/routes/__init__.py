"""Routes of people and directories; entry points name them."""
