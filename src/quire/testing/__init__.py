"""Help for tests of programs that use Quire: a scripted model."""
