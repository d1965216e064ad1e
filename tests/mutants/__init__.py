"""Defects that are planted in a copy of the source, to see that the tests find each: `make mutants`."""
