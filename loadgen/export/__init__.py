"""A run in the forms of other programs; it measures nothing and judges nothing."""
