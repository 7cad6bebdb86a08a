"""A package of somebody else's, with one of everything that can be added; installed by the tests."""
